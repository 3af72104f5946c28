//! A server in front of the API server: it passes everything on, counts requests, and breaks
//! answers as a test says.

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Error, Result, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    body::Incoming,
    client::conn::http1 as upstream,
    header::{CONTENT_TYPE, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, rustls::pki_types::ServerName};

use super::{
    keys::Keys,
    rule::{Asked, Fault, Request, Rule},
    runtime::HostRuntime,
    server::ControlPlane,
    tamper,
};

/// The port beside the API server's.
const PORT: u16 = 7443;

/// A server before the API server. Dropped, it ends.
pub struct Front {
    shared: Arc<Shared>,
    runtime: HostRuntime,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    task: Option<JoinHandle<()>>,
}

struct Shared {
    upstream: SocketAddr,
    connector: TlsConnector,
    rules: Mutex<Vec<Rule>>,
    requests: Mutex<Vec<Request>>,
    /// How often a fault broke something. [`Front::clear`] starts a new count, because earlier
    /// answers may still go on.
    struck: Mutex<Arc<AtomicUsize>>,
    /// Incremented to cut every connection.
    cuts: watch::Sender<u64>,
}

type Body = UnsyncBoxBody<Bytes, Error>;

impl Front {
    /// Begins to serve beside an API server, with its certificate.
    ///
    /// # Errors
    /// If its port is taken.
    pub fn start(control_plane: &ControlPlane) -> Result<Self> {
        let keys: &Keys = control_plane.keys();
        let shared = Shared {
            upstream: control_plane.address(),
            connector: keys.connector()?,
            rules: Mutex::default(),
            requests: Mutex::default(),
            struck: Mutex::default(),
            cuts: watch::Sender::new(0),
        };
        let mut front = Self {
            shared: Arc::new(shared),
            runtime: control_plane.runtime().clone(),
            address: control_plane.port(PORT),
            acceptor: keys.acceptor()?,
            task: None,
        };
        front.open()?;
        Ok(front)
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets clients in, after [`Front::close`].
    ///
    /// # Errors
    /// If the port is taken.
    pub fn open(&mut self) -> Result<()> {
        self.close();
        let address = self.address;
        let listener = self.runtime.wait(TcpListener::bind(address));
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        let (shared, acceptor) = (self.shared.clone(), self.acceptor.clone());
        self.task = Some(self.runtime.spawn(accept(listener, acceptor, shared)));
        Ok(())
    }

    /// Cuts every connection and refuses new ones.
    pub fn close(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // The port is free once the task has ended.
            let _ = self.runtime.wait(task);
        }
    }

    /// Moves to another port. Clients keep the old one.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn move_to(&mut self, port: u16) -> Result<()> {
        self.close();
        self.address.set_port(port);
        self.open()
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Adds a rule. The first rule that matches a request applies.
    pub fn add(&self, rule: Rule) {
        self.shared.rules().push(rule);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.shared.rules().clear();
        *self.shared.struck() = Arc::default();
    }

    /// How often a fault has broken something since [`Front::clear`]: an answer that was refused,
    /// cut or late, or an event. A watch that matched a rule but has had no event yet does not
    /// count.
    pub fn faults_struck(&self) -> usize {
        self.shared.struck().load(Ordering::Relaxed)
    }

    /// How many more requests the rules apply to; 0 if all have been used up.
    pub fn faults_left(&self) -> usize {
        let rules = self.shared.rules();
        rules
            .iter()
            .map(|rule| rule.left())
            .fold(0, usize::saturating_add)
    }

    /// Every request since the start, or since [`Front::forget`].
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests().clone()
    }

    /// How many of them were requests of this kind for this resource.
    pub fn count(&self, asked: Asked, resource: &str) -> usize {
        let requests = self.shared.requests();
        let wanted = |request: &&Request| request.asked == asked && request.resource == resource;
        requests.iter().filter(wanted).count()
    }

    /// How many of them were for whole lists, in any form.
    pub fn lists(&self) -> usize {
        let requests = self.shared.requests();
        let is_list =
            |request: &&Request| matches!(request.asked, Asked::List | Asked::StreamedList);
        requests.iter().filter(is_list).count()
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        self.shared.requests().clear();
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn struck(&self) -> MutexGuard<'_, Arc<AtomicUsize>> {
        self.struck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault for a request.
    fn fault(&self, request: &Request) -> Option<Fault> {
        self.rules().iter_mut().find_map(|rule| rule.take(request))
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Result<Response<Body>> {
        let mut seen = Request::read(request.uri());
        let fault = self.fault(&seen);
        let answer = self.answer_with(request, fault).await;
        seen.code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        self.requests().push(seen);
        answer
    }

    async fn answer_with(
        &self,
        request: hyper::Request<Incoming>,
        fault: Option<Fault>,
    ) -> Result<Response<Body>> {
        let struck = self.struck().clone();
        let strike = || struck.fetch_add(1, Ordering::Relaxed);
        let tampering = match fault {
            None => return self.pass_on(request).await,
            Some(Fault::Answer { code, retry_after }) => {
                strike();
                return refusal(code, retry_after);
            }
            Some(Fault::Cut) => {
                strike();
                return Err(anyhow!("cut"));
            }
            Some(Fault::Delay(time)) => {
                sleep(time).await;
                strike();
                return self.pass_on(request).await;
            }
            Some(tampering) => tampering,
        };
        let (head, body) = self.pass_on(request).await?.into_parts();
        let body = tamper::body(body, tampering, struck);
        Ok(Response::from_parts(head, body))
    }

    /// Asks the API server, on a connection of its own.
    async fn pass_on(&self, request: hyper::Request<Incoming>) -> Result<Response<Body>> {
        let stream = TcpStream::connect(self.upstream).await?;
        let name = ServerName::from(self.upstream.ip());
        let stream = self.connector.connect(name, stream).await?;
        let (mut sender, connection) = upstream::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let answer = sender.send_request(request).await?;
        Ok(answer.map(|body| body.map_err(Error::from).boxed_unsync()))
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        let mut cuts = shared.cuts.subscribe();
        connections.spawn(async move {
            tokio::select! {
                _ = cuts.changed() => {}
                // The client notices what breaks here.
                _ = serve(socket, acceptor, shared) => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(socket: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) -> Result<()> {
    let socket = acceptor.accept(socket).await?;
    let answer = service_fn(|request| shared.answer(request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), answer);
    Ok(connection.await?)
}

fn refusal(code: u16, retry_after: Option<u32>) -> Result<Response<Body>> {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "message": "refused for the sake of a test",
    });
    let mut response = Response::builder()
        .status(StatusCode::from_u16(code)?)
        .header(CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        response = response.header(RETRY_AFTER, seconds);
    }
    let text = Full::new(Bytes::from(status.to_string()));
    let body = text
        .map_err(|never: Infallible| match never {})
        .boxed_unsync();
    Ok(response.body(body)?)
}
