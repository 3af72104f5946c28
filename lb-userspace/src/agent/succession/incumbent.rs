//! The side of an agent that stands by: its connection to the agent in charge.

use std::{io, os::fd::OwnedFd, path::Path, time::Duration};

use tokio::{net::UnixStream, time::timeout};

use super::wire::{Message, VERSION, Wire};

/// How long the agent in charge may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The agent in charge, as one that stands by sees it.
#[derive(Debug)]
pub struct Incumbent {
    wire: Wire,
}

/// What the agent in charge says.
#[derive(Debug)]
pub enum News {
    /// It listens on these as well.
    Listeners(Vec<OwnedFd>),
    /// It writes nothing any more, and its lock is free.
    GaveWay,
    /// It is gone.
    Gone,
}

impl Incumbent {
    /// Connects to the agent in charge.
    ///
    /// # Errors
    ///
    /// If there is none that offers its place.
    pub async fn find(path: &Path) -> io::Result<Self> {
        let mut wire = Wire::new(UnixStream::connect(path).await?);
        wire.say(Message::StandBy { version: VERSION }, &[]).await?;
        match timeout(PATIENCE, wire.hear()).await?? {
            Some((Message::InCharge { version }, _)) => {
                if version != VERSION {
                    tracing::warn!(
                        "the agent in charge is of another version: its ports will be closed for \
                         a moment"
                    );
                }
                Ok(Self { wire })
            }
            _ => Err(io::Error::other("this is no agent that is in charge")),
        }
    }

    /// Asks for the place.
    ///
    /// # Errors
    ///
    /// If the agent in charge is gone.
    pub async fn ask(&self) -> io::Result<()> {
        self.wire.say(Message::TakeOver, &[]).await
    }

    /// What the agent says next. May be given up at any time without losing anything.
    pub async fn news(&mut self) -> News {
        loop {
            match self.wire.hear().await {
                Ok(Some((Message::Listeners { .. }, sockets))) => return News::Listeners(sockets),
                Ok(Some((Message::Yours, _))) => return News::GaveWay,
                Ok(Some(_)) => {}
                Ok(None) => return News::Gone,
                Err(error) => {
                    tracing::warn!("cannot understand the agent in charge: {error}");
                    return News::Gone;
                }
            }
        }
    }

    /// Has the agent, which has given way, accept no more connections, because this one does from
    /// now on. When this returns, it does not, or it hangs.
    pub async fn stop(mut self) {
        let stopped = async {
            self.wire.say(Message::Stop, &[]).await?;
            while let Some((message, _)) = self.wire.hear().await? {
                if message == Message::Stopped {
                    break;
                }
            }
            Ok::<_, io::Error>(())
        };
        match timeout(PATIENCE, stopped).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!("the former agent is gone: {error}"),
            Err(_) => tracing::warn!("the former agent hangs, and may answer health checks, too"),
        }
    }
}
