//! One TCP connection: its throughput.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::sys::{
    socket::{setsockopt, sockopt},
    time::{TimeVal, TimeValLike},
};

use super::Cpus;
use crate::{
    cluster::{Cluster, services::TARGET_PORT},
    machine::pin,
};

/// Bytes per system call.
const CHUNK: usize = 128 << 10;
/// How long a connection may make no progress.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends for a while. Returns the bits per second that the pod has read.
///
/// # Errors
///
/// If the connection fails, stops, or loses data.
pub fn sample(cluster: &Cluster, duration: Duration, cpus: Cpus) -> Result<f64> {
    let target = cluster.target(0, 0);
    let listener = cluster.server().netns().run(listen)??;
    thread::scope(|scope| {
        let server = scope.spawn(|| read_all(&listener, cpus.server));
        let sent = cluster.client().netns().run(|| {
            pin(cpus.client)?;
            send(target, duration)
        })?;
        let read = server.join().expect("reading does not panic");
        let (sent, (read, took)) = (sent?, read?);
        ensure!(read == sent, "the pod read {read} of {sent} bytes");
        Ok(read as f64 * 8.0 / took.as_secs_f64())
    })
}

fn send(target: SocketAddrV4, duration: Duration) -> Result<u64> {
    let mut stream =
        TcpStream::connect(target).with_context(|| format!("no connection to {target}"))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let chunk = vec![0; CHUNK];
    let since = Instant::now();
    let mut sent = 0;
    while since.elapsed() < duration {
        stream.write_all(&chunk)?;
        sent += CHUNK as u64;
    }
    Ok(sent)
}

fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TARGET_PORT))?;
    let patience = TimeVal::seconds(PATIENCE.as_secs() as i64);
    setsockopt(&listener, sockopt::ReceiveTimeout, &patience)?;
    Ok(listener)
}

/// Reads one connection to its end. Returns the bytes, and the time from the first to the last.
fn read_all(listener: &TcpListener, cpu: usize) -> Result<(u64, Duration)> {
    pin(cpu)?;
    let (mut stream, _) = listener.accept().context("the pod got no connection")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; CHUNK];
    let since = Instant::now();
    let mut read = 0;
    loop {
        match stream.read(&mut buffer).context("the pod got no more")? {
            0 => return Ok((read, since.elapsed())),
            bytes => read += bytes as u64,
        }
    }
}
