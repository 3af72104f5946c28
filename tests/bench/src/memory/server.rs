//! An API server of just the requests that the agent makes: it streams all objects, and then a
//! change of all slices whenever one is asked for.

use std::{
    io::{BufRead as _, BufReader, BufWriter, Result as IoResult, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
};

use anyhow::{Context as _, Result};
use lb_tests::{Node, manifests::node_object};
use serde_json::{Value, json};

use super::{Extent, objects};

/// Serves until the process ends.
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    extent: Extent,
    node: Value,
    /// How often all slices have changed.
    changes: Mutex<u32>,
    changed: Condvar,
}

impl ApiServer {
    /// Listens on a node's loopback.
    ///
    /// # Errors
    ///
    /// If that is impossible.
    pub fn start(node: &Node, extent: Extent) -> Result<Self> {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = node.netns().run(listen)?.context("cannot listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            extent,
            node: node_object(node),
            changes: Mutex::new(0),
            changed: Condvar::new(),
        });
        let served = shared.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = served.clone();
                // An agent that has ended is no error here.
                thread::spawn(move || shared.serve(&connection));
            }
        });
        Ok(Self { address, shared })
    }

    /// The agent's access.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{ name: c, cluster: {{ server: 'http://{}' }} }}]\n\
             users: [{{ name: u, user: {{}} }}]\n\
             contexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]\n",
            self.address
        )
    }

    /// Has all slices change.
    pub fn change(&self) {
        let changes = self.shared.changes.lock();
        *changes.unwrap_or_else(PoisonError::into_inner) += 1;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Answers the one request of a connection.
    fn serve(&self, connection: &TcpStream) -> IoResult<()> {
        let mut reader = BufReader::new(connection);
        let mut request = String::new();
        reader.read_line(&mut request)?;
        let mut header = String::new();
        while reader.read_line(&mut header)? > 2 {
            header.clear();
        }
        let target = request.split(' ').nth(1).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let resource = path.rsplit('/').next().unwrap_or_default();
        if !request.starts_with("GET ") || !query.contains("sendInitialEvents=true") {
            let text = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":404}"#;
            return write!(
                &*connection,
                "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{text}",
                text.len()
            );
        }
        write!(
            &*connection,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )?;
        let mut out = BufWriter::with_capacity(1 << 16, Chunks(connection));
        self.stream(resource, &mut out)
    }

    fn stream(&self, resource: &str, out: &mut impl Write) -> IoResult<()> {
        let extent = self.extent;
        let mut seen = 0;
        match resource {
            "services" => (0..extent.services)
                .try_for_each(|number| send(out, "ADDED", &objects::service(extent, number)))?,
            "endpointslices" => self.slices(out, "ADDED", seen)?,
            _ => send(out, "ADDED", &self.node)?,
        }
        let bookmark = json!({
            "metadata": {
                "resourceVersion": "3000000",
                "annotations": { "k8s.io/initial-events-end": "true" },
            },
        });
        send(out, "BOOKMARK", &bookmark)?;
        out.flush()?;
        loop {
            let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            let changes = self.changed.wait_while(changes, |changes| *changes == seen);
            seen = *changes.unwrap_or_else(PoisonError::into_inner);
            if resource == "endpointslices" {
                self.slices(out, "MODIFIED", seen)?;
                out.flush()?;
            }
        }
    }

    /// Sends every slice, after so many changes.
    fn slices(&self, out: &mut impl Write, event: &str, changes: u32) -> IoResult<()> {
        let extent = self.extent;
        for number in 0..extent.services {
            for family in 0..extent.families {
                send(
                    out,
                    event,
                    &objects::slice(extent, number, family, changes > 0),
                )?;
            }
        }
        Ok(())
    }
}

/// A watch event.
fn send(out: &mut impl Write, event: &str, object: &Value) -> IoResult<()> {
    serde_json::to_writer(&mut *out, &json!({ "type": event, "object": object }))?;
    out.write_all(b"\n")
}

/// A body in chunks, one for each write.
struct Chunks<'a>(&'a TcpStream);

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        (&*self.0).write_all(&chunk)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> IoResult<()> {
        (&*self.0).flush()
    }
}
