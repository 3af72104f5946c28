//! The side of the agent in charge: what it offers to agents that stand by.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Notify, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use super::wire::{DESCRIPTORS, Message, VERSION, Wire};
use crate::http::{Listeners, bind_unix};

/// Agents that may stand by. There is one more pod than usual while a DaemonSet is updated.
const MOST: usize = 4;
/// How long an agent may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(1);
/// After an error about no agent in particular.
const PAUSE: Duration = Duration::from_millis(100);

/// Where the agent with this local API offers its place.
pub fn path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".standby");
    path.into()
}

/// Duplicates of all listening sockets go to each agent that stands by, those opened later as well.
/// Dropped, it closes all connections to them.
#[derive(Debug)]
pub struct Offer {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    connections: Mutex<JoinSet<()>>,
    standbys: Mutex<Vec<Standby>>,
    asked: Notify,
}

/// An agent that stands by, as the one in charge sees it.
#[derive(Debug)]
pub struct Standby {
    number: u64,
    wants_place: bool,
    say: mpsc::Sender<(Message, oneshot::Sender<()>)>,
    heard: mpsc::Receiver<Message>,
}

impl Offer {
    /// Offers `listeners` on a Unix socket that only this user may connect to. Needs a Tokio
    /// runtime, on which it works.
    ///
    /// # Errors
    ///
    /// If the socket's path is taken or cannot be written.
    pub fn open(path: &Path, listeners: Arc<Listeners>) -> io::Result<Self> {
        let listener = UnixListener::from_std(bind_unix(path)?)?;
        let shared = Arc::<Shared>::default();
        let accepting = tokio::spawn(accept(listener, listeners, shared.clone()));
        Ok(Self { shared, accepting })
    }

    /// Closes the socket, but not the connections.
    pub async fn close(&mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await; // it was cancelled
    }

    /// Waits until an agent asks for the place.
    pub async fn asked(&self) -> Standby {
        loop {
            if let Some(standby) = self.take(|standby| standby.wants_place) {
                return standby;
            }
            self.shared.asked.notified().await;
        }
    }

    /// The agent that is to take the place of one that leaves, if there is one.
    pub fn successor(&self) -> Option<Standby> {
        self.take(|standby| standby.wants_place)
            .or_else(|| self.take(|_| true))
    }

    fn take(&self, meant: impl Fn(&Standby) -> bool) -> Option<Standby> {
        let mut standbys = lock(&self.shared.standbys);
        // The latest is most likely of the version that is to run.
        let found = standbys.iter().rposition(meant)?;
        Some(standbys.remove(found))
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.accepting.abort();
        lock(&self.shared.connections).abort_all();
    }
}

impl Shared {
    /// Notes that an agent wants the place.
    fn wants_place(&self, number: u64) {
        let mut standbys = lock(&self.standbys);
        let mut standbys = standbys.iter_mut();
        if let Some(standby) = standbys.find(|standby| standby.number == number) {
            standby.wants_place = true;
            self.asked.notify_one();
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // All of them are valid at every step.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Standby {
    /// Says something; returns once it is sent, or the agent is gone.
    pub async fn say(&self, message: Message) {
        let (done, said) = oneshot::channel();
        if self.say.send((message, done)).await.is_ok() {
            let _ = said.await;
        }
    }

    /// What it says next; `None` once it is gone.
    pub async fn hear(&mut self) -> Option<Message> {
        self.heard.recv().await
    }
}

async fn accept(listener: UnixListener, listeners: Arc<Listeners>, shared: Arc<Shared>) {
    let own = rustix::process::geteuid().as_raw();
    let mut last = 0;
    loop {
        match listener.accept().await {
            // The socket's permissions say the same; root itself may have changed them.
            Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == own) => {
                let mut connections = lock(&shared.connections);
                while connections.try_join_next().is_some() {}
                if connections.len() >= MOST {
                    tracing::warn!("another agent wants to stand by, but {MOST} do already");
                    continue;
                }
                last += 1;
                let attend = attend(last, stream, listeners.clone(), shared.clone());
                connections.spawn(attend);
            }
            Ok(_) => tracing::warn!("a process of another user wants to stand by"),
            Err(error) => {
                tracing::debug!("cannot accept an agent that stands by: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Serves one agent that stands by, until one of the two goes.
async fn attend(number: u64, stream: UnixStream, listeners: Arc<Listeners>, shared: Arc<Shared>) {
    let (say, mut to_say) = mpsc::channel(1);
    let (tell, heard) = mpsc::channel(4);
    let mut wire = Wire::new(stream);
    let outcome = async {
        let version = greet(&mut wire).await?;
        lock(&shared.standbys).push(Standby {
            number,
            wants_place: false,
            say,
            heard,
        });
        let (mut opened, mut sent) = (listeners.last(), 0);
        if version == VERSION {
            sent = send(&wire, &listeners, sent).await?;
        } else {
            tracing::warn!(
                "the agent that stands by is of another version: it will open its ports itself"
            );
        }
        // Not before: whoever reads this may end the agent, and its sockets are to outlive it.
        tracing::info!("another agent stands by");
        loop {
            tokio::select! {
                _ = opened.changed(), if version == VERSION => {
                    sent = send(&wire, &listeners, sent).await?;
                }
                said = to_say.recv() => {
                    let Some((message, done)) = said else { return Ok(()) };
                    if version == VERSION {
                        sent = send(&wire, &listeners, sent).await?;
                    }
                    wire.say(message, &[]).await?;
                    let _ = done.send(());
                }
                heard = wire.hear() => match heard? {
                    None => return Ok(()),
                    Some((Message::TakeOver, _)) => shared.wants_place(number),
                    Some((message, _)) => _ = tell.try_send(message),
                },
            }
        }
    };
    let outcome: io::Result<()> = outcome.await;
    lock(&shared.standbys).retain(|standby| standby.number != number);
    if let Err(error) = outcome {
        tracing::info!("an agent that stood by is gone: {error}");
    }
}

/// Exchanges the first messages; returns the other side's version.
async fn greet(wire: &mut Wire) -> io::Result<u32> {
    wire.say(Message::InCharge { version: VERSION }, &[])
        .await?;
    match timeout(PATIENCE, wire.hear()).await?? {
        Some((Message::StandBy { version }, _)) => Ok(version),
        _ => Err(io::Error::other("it did not say that it stands by")),
    }
}

/// Sends the sockets that were opened after the one with number `sent`. Returns the last one's.
async fn send(wire: &Wire, listeners: &Listeners, sent: u64) -> io::Result<u64> {
    let last = *listeners.last().borrow();
    let sockets = listeners.after(sent)?;
    for sockets in sockets.chunks(DESCRIPTORS) {
        let descriptors: Vec<_> = sockets.iter().map(std::os::fd::AsFd::as_fd).collect();
        let count = descriptors.len();
        wire.say(Message::Listeners { count }, &descriptors).await?;
    }
    Ok(last)
}
