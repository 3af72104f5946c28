//! Makes the kernel forget the connections that it tracks.

use anyhow::{Context, Result, ensure};
use lb_tests::lab::Netns;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE` (linux/netfilter/nfnetlink.h).
const DELETE: u16 = 1 << 8 | 2;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const FLAGS: u16 = 1 | 4;
const HEADER: usize = 16;
/// `NLMSG_ERROR`, which is also the type of an acknowledgement.
const ERROR: u16 = 2;

/// Removes all tracked connections of a network namespace.
///
/// # Errors
///
/// If the kernel refuses.
pub fn flush(netns: &Netns) -> Result<()> {
    netns
        .run(request)?
        .context("cannot remove tracked connections")
}

fn request() -> Result<()> {
    // `struct nlmsghdr`, then `struct nfgenmsg` without a family, which means all families.
    let mut message = Vec::with_capacity(HEADER + 4);
    message.extend((HEADER as u32 + 4).to_ne_bytes());
    message.extend(DELETE.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    message.extend([0; 12]);

    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.send_to(&message, &SocketAddr::new(0, 0), 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = answer.get(..HEADER + 4).context("a short answer")?;
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    let code = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    ensure!(kind == ERROR && code == 0, "the kernel answered {code}");
    Ok(())
}
