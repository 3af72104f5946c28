//! What agents of one node say to each other: a line of JSON for each message, and descriptors.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::Interest,
    net::UnixStream,
    time::{Duration, timeout},
};

/// Raised when an agent could misunderstand one of another version. Such a one takes the place, but
/// no sockets; new messages alone need no new version, because they are ignored.
pub const VERSION: u32 = 1;

/// Descriptors that go with one message.
pub const DESCRIPTORS: usize = 64;
/// The longest message, in bytes.
const LONGEST: usize = 4096;
/// Descriptors that may wait for the message that they belong to.
const WAITING: usize = 4 * DESCRIPTORS;
/// How long the other side may leave a message untaken.
const PATIENCE: Duration = Duration::from_secs(1);

/// A message. Those of the standby first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum Message {
    /// The first message of a standby.
    StandBy { version: u32 },
    /// It wants the place.
    TakeOver,
    /// It serves from now on: nobody else is to accept connections.
    Stop,
    /// The first message of the agent in charge.
    InCharge { version: u32 },
    /// With so many descriptors of listening sockets.
    Listeners { count: usize },
    /// The place is free: its lock is to be taken.
    Yours,
    /// The answer to [`Self::Stop`]: nobody else accepts connections.
    Stopped,
    /// Of a later version.
    #[serde(other)]
    Unknown,
}

/// A connection between two agents.
#[derive(Debug)]
pub struct Wire {
    stream: UnixStream,
    unread: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Wire {
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            unread: Vec::new(),
            descriptors: VecDeque::new(),
        }
    }

    /// Says something, with at most [`DESCRIPTORS`].
    ///
    /// # Errors
    ///
    /// If the other side is gone, or takes nothing for a second.
    pub async fn say(&self, message: Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut text = serde_json::to_vec(&message)?;
        text.push(b'\n');
        let sent = self.send(&text, descriptors);
        timeout(PATIENCE, sent)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the other agent hangs"))?
    }

    async fn send(&self, mut text: &[u8], mut descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        while !text.is_empty() {
            let sent = self.stream.async_io(Interest::WRITABLE, || {
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !descriptors.is_empty()
                    && !control.push(SendAncillaryMessage::ScmRights(descriptors))
                {
                    return Err(io::Error::other("too many descriptors"));
                }
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                Ok(sendmsg(
                    &self.stream,
                    &[IoSlice::new(text)],
                    &mut control,
                    flags,
                )?)
            });
            let sent = sent.await?;
            text = &text[sent..];
            descriptors = &[]; // they go with the first byte
        }
        Ok(())
    }

    /// The next message, with its descriptors; `None` if the other side has closed. May be given up
    /// at any time without losing anything.
    ///
    /// # Errors
    ///
    /// If the connection fails, or this is no message.
    pub async fn hear(&mut self) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = self.unread.drain(..=end).collect();
                let message = serde_json::from_slice(&line)?;
                let own = match message {
                    Message::Listeners { count } => count.min(self.descriptors.len()),
                    _ => 0,
                };
                return Ok(Some((message, self.descriptors.drain(..own).collect())));
            }
            if self.unread.len() > LONGEST || self.descriptors.len() > WAITING {
                let message = "this is not what an agent says";
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            self.stream.readable().await?;
            match self.receive() {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let Self {
            stream,
            unread,
            descriptors,
        } = self;
        stream.try_io(Interest::READABLE, || {
            let mut bytes = [0; 1024];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let into = &mut [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(stream.as_fd(), into, &mut control, flags)?.bytes;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(sent) = message {
                    descriptors.extend(sent);
                }
            }
            unread.extend(&bytes[..received]);
            Ok(received)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
    };

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn messages_arrive_in_order_with_their_descriptors() {
        let (one, mut other) = pair();
        let pipes: Vec<_> = (0..3).map(|_| io::pipe().unwrap()).collect();
        let ends: Vec<_> = pipes.iter().map(|(_, end)| end.as_fd()).collect();
        let hello = Message::StandBy { version: 1 };
        one.say(hello, &[]).await.unwrap();
        let (two, third) = ends.split_at(2);
        let listeners = |count| Message::Listeners { count };
        one.say(listeners(2), two).await.unwrap();
        one.say(listeners(1), third).await.unwrap();
        one.say(Message::Stop, &[]).await.unwrap();

        assert_eq!(other.hear().await.unwrap().unwrap().0, hello);
        let mut arrived = Vec::new();
        for expected in [2, 1] {
            let (message, descriptors) = other.hear().await.unwrap().unwrap();
            assert_eq!(message, listeners(expected));
            assert_eq!(descriptors.len(), expected);
            arrived.extend(descriptors);
        }
        let (last, none) = other.hear().await.unwrap().unwrap();
        assert_eq!((last, none.len()), (Message::Stop, 0));
        for (descriptor, (mut pipe, _)) in arrived.into_iter().zip(pipes) {
            File::from(descriptor).write_all(b"x").unwrap();
            let mut byte = [0];
            pipe.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"x");
        }
        drop(one);
        assert!(other.hear().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_a_later_version_says_is_not_understood_and_harms_nothing() {
        let (one, mut other) = pair();
        let mut stream = one.stream;
        let text = b"{\"say\":\"sing\",\"song\":[1]}\n{\"say\":\"yours\",\"really\":true}\n";
        stream.write_all(text).await.unwrap();
        for expected in [Message::Unknown, Message::Yours] {
            assert_eq!(other.hear().await.unwrap().unwrap().0, expected);
        }
        for nonsense in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[b'x'; 5000]] {
            let (one, mut other) = pair();
            let mut stream = one.stream;
            stream.write_all(nonsense).await.unwrap();
            other.hear().await.unwrap_err();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_nothing_is_not_waited_for() {
        let (one, _other) = pair();
        let mut outcome = Ok(());
        for _ in 0..10_000 {
            outcome = one.say(Message::Yours, &[]).await;
            if outcome.is_err() {
                break;
            }
        }
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    fn pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().unwrap();
        (Wire::new(one), Wire::new(other))
    }
}
