//! Ends connected UDP sockets of the node's own processes if their endpoint no longer serves.
//!
//! Such a socket was translated when it connected, so it would send to the endpoint for ever. When
//! it is ended, its process gets an error, connects again, and gets an endpoint that serves.

use std::{collections::HashMap, io, net::SocketAddr};

use lb_common::{
    abi::{Socket, SocketKey},
    parse::UDP,
};
use lb_datapath::bpf::{BatchError, BatchMap};
use thiserror::Error;

use super::{diag::SocketDiag, stale::Staleness};

/// A socket's cookie and the endpoint that it was translated to. The same socket may since have
/// connected to another one.
pub type Translated = (u64, SocketAddr);

/// The sockets in the `SOCKETS` map.
#[derive(Debug)]
pub struct UdpSockets {
    translated: BatchMap<SocketKey, Socket>,
}

/// Why sockets with stale endpoints are still there.
#[derive(Debug, Error)]
pub enum SocketError {
    #[error(
        "this kernel cannot end sockets (CONFIG_INET_DIAG_DESTROY is off): connected UDP sockets of \
         the node's own processes stay with endpoints that are gone"
    )]
    Unsupported,
    #[error("cannot {action} the node's UDP sockets: {source}")]
    Kernel {
        action: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Map(#[from] BatchError),
}

impl UdpSockets {
    /// `translated` is the `SOCKETS` map.
    pub fn new(translated: BatchMap<SocketKey, Socket>) -> Self {
        Self { translated }
    }

    /// Ends the sockets of this network namespace that have a stale endpoint. Returns how many.
    ///
    /// # Errors
    ///
    /// If the sockets cannot be listed or ended.
    pub fn end_stale(&self, stale: &impl Staleness) -> Result<u64, SocketError> {
        let mut targets = HashMap::new();
        for (key, socket) in self.translated.entries()? {
            let endpoint = SocketAddr::new(key.address.into(), key.port);
            let udp = key.protocol == u16::from(UDP);
            if udp && stale.confirm(socket.service, endpoint).is_some() {
                targets.insert((key.cookie, endpoint), socket.service);
            }
        }
        end(&targets, stale)
    }
}

/// Ends those UDP sockets of this network namespace that are in `targets`, are still connected to
/// the given endpoint, and are stale for the given service port. Returns how many.
///
/// # Errors
///
/// If the sockets cannot be listed, or one cannot be ended.
pub fn end(targets: &HashMap<Translated, u32>, stale: &impl Staleness) -> Result<u64, SocketError> {
    if targets.is_empty() {
        return Ok(0);
    }
    let diag = SocketDiag::open().map_err(|source| refused("ask for", source))?;
    let sockets = diag
        .connected_udp()
        .map_err(|source| refused("list", source))?;
    let mut ended = 0;
    for socket in sockets {
        let Some(service) = targets.get(&(socket.cookie, socket.peer)) else {
            continue;
        };
        let Some(_hold) = stale.confirm(*service, socket.peer) else {
            continue;
        };
        match diag.destroy(socket) {
            Ok(()) => ended += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return Err(SocketError::Unsupported);
            }
            Err(source) => return Err(refused("end", source)),
        }
    }
    Ok(ended)
}

fn refused(action: &'static str, source: io::Error) -> SocketError {
    SocketError::Kernel { action, source }
}
