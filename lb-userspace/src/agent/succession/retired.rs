//! An agent that has given way, and answers health checks until the next one does.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use lb_datapath::pins::{HANDOVER, Lock};
use tokio::{
    task::JoinHandle,
    time::{sleep, sleep_until, timeout_at},
};

use super::{Kept, LOOK, Offer, Place, Predecessor, Standby, wire::Message};
use crate::{
    agent::{process::Process, resize::Ahead, servers::Servers, vitals::Phase},
    config::Config,
    health::service::ServiceHealthServers,
};

/// How long an agent that is told to stop waits for the next one to serve: less than the thirty
/// seconds that its pod has. On a busy node the kernel takes ten or more to accept the programs.
const FAREWELL: Duration = Duration::from_secs(25);
/// How long those who are connected then have for their answers.
const LAST: Duration = Duration::from_secs(1);
/// How long clients that are connected have to ask once more.
const GRACE: Duration = Duration::from_secs(5);

/// What is left of an agent that writes nothing and has no lock.
pub struct Retired {
    servers: Servers,
    service_health: ServiceHealthServers,
    /// Holds the connection to the standby.
    _offer: Option<Offer>,
    /// For when it is in charge again.
    programs: Option<Ahead>,
}

/// What an agent that has given way does next.
pub enum Next {
    End,
    /// Another agent serves.
    StandBy(Kept),
    /// The other agent has not come to serve.
    Resume(Box<Place>),
}

impl Retired {
    pub fn new(
        servers: Servers,
        service_health: ServiceHealthServers,
        offer: Option<Offer>,
        programs: Option<Ahead>,
    ) -> Self {
        Self {
            servers,
            service_health,
            _offer: offer,
            programs,
        }
    }

    /// Answers health checks with what was last known, until `standby` serves; without one, only
    /// clients that are connected.
    ///
    /// # Errors
    ///
    /// If the lock cannot be opened, or there are no descriptors left.
    pub async fn answer(
        mut self,
        standby: Option<Standby>,
        config: &Config,
        process: &Process,
    ) -> anyhow::Result<Next> {
        let Some(mut standby) = standby else {
            self.finish().await;
            return Ok(Next::End);
        };
        process.vitals.set(Phase::StandingBy);
        let stop = process.stop();
        let root = &config.datapath.bpf_root;
        standby.say(Message::Yours).await;
        let mut is_there = true;
        let begun = Instant::now();
        let mut end = stop.is_told().then(|| begun + FAREWELL);
        loop {
            tokio::select! {
                heard = standby.hear(), if is_there => match heard {
                    Some(Message::Stop) => {
                        let sockets = self.sockets()?;
                        let connections = self.leave().await;
                        standby.say(Message::Stopped).await;
                        return Ok(match end {
                            None => Next::StandBy(Kept {
                                sockets,
                                programs: self.programs,
                                clients: Clients(connections),
                            }),
                            Some(end) => {
                                Clients(connections).served_until(end).await;
                                Next::End
                            }
                        });
                    }
                    Some(_) => {}
                    None => is_there = false,
                },
                () = stop.told(), if end.is_none() => end = Some(Instant::now() + FAREWELL),
                () = sleep_until(end.unwrap_or(begun).into()), if end.is_some() => {
                    tracing::warn!("the next agent does not serve in time");
                    self.finish().await;
                    return Ok(Next::End);
                }
                () = sleep(LOOK), if end.is_none() => {
                    // A standby that is gone leaves the lock; one that hangs may never have taken
                    // it.
                    let late = begun.elapsed() > HANDOVER;
                    if (!is_there || late) && let Some(lock) = Lock::try_take(root)? {
                        tracing::warn!("the agent that was to take over has not; going on");
                        return Ok(Next::Resume(Box::new(self.resume(lock)?)));
                    }
                    if !is_there && late {
                        // Yet another one has the lock, and the sockets as well.
                        let clients = Clients(self.leave().await);
                        return Ok(Next::StandBy(Kept {
                            clients,
                            ..Kept::default()
                        }));
                    }
                }
            }
            if end.is_some() && !is_there {
                self.finish().await;
                return Ok(Next::End);
            }
        }
    }

    /// Accepts no more connections, and answers those there are.
    async fn finish(&mut self) {
        Clients(self.leave().await).served().await;
    }

    /// Accepts no more connections; returns tasks that serve those there are.
    pub async fn leave(&mut self) -> Vec<JoinHandle<()>> {
        let mut connections = self.servers.leave(GRACE).await;
        connections.extend(self.service_health.leave(GRACE).await);
        connections
    }

    fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        self.servers.stack.listeners().after(0)
    }

    fn resume(mut self, lock: Lock) -> io::Result<Place> {
        Ok(Place {
            lock,
            ahead: self.programs.take(),
            sockets: self.sockets()?,
            predecessor: Some(Predecessor::Own(self)),
        })
    }
}

/// Those who were connected when an agent stopped accepting, and have no answer yet.
#[derive(Debug, Default)]
pub struct Clients(Vec<JoinHandle<()>>);

impl Clients {
    /// Returns when they have their answers, or the process has to end.
    pub async fn served(self) {
        self.served_until(Instant::now() + LAST).await;
    }

    async fn served_until(self, end: Instant) {
        for task in self.0 {
            let _ = timeout_at(end.into(), task).await;
        }
    }
}
