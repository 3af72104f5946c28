//! Finds out which group serves a Service, by connecting to it.

use std::{
    io::{BufRead as _, BufReader, Result as IoResult, Write as _},
    net::{SocketAddrV4, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::Agent;
use serde_json::Value;

use super::ground::Group;

/// How long a connection may take. A client may get no answer at all from a Service that is not
/// programmed yet.
const PATIENCE: Duration = Duration::from_millis(100);
/// The pause between two connections, so that these cost the servers little.
const PAUSE: Duration = Duration::from_micros(200);

/// Connects to `target`, in the calling thread's network namespace, until a connection leads to
/// `group`.
///
/// # Errors
///
/// If that takes too long, or `proxy` ends.
pub fn wait_for(
    group: Group,
    target: SocketAddrV4,
    proxy: &mut Agent,
    deadline: Duration,
) -> Result<()> {
    let since = Instant::now();
    while ask(target).ok().as_deref() != Some(group.name()) {
        proxy.check()?;
        ensure!(
            since.elapsed() < deadline,
            "{target} does not lead to group {} after {deadline:?}",
            group.name()
        );
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// The name of the server that answers.
fn ask(target: SocketAddrV4) -> IoResult<String> {
    let mut stream = TcpStream::connect_timeout(&target.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line)?;
    Ok(answer["server"].as_str().unwrap_or_default().to_owned())
}
