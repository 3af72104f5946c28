//! The layers around every server's handler, and the state that they share.

use std::{io, net::TcpListener, os::unix::net::UnixListener, sync::Arc, time::Duration};

use tokio::{runtime::Handle, task::JoinHandle};

use super::{
    AnyHandler, AskReady, Class, ConnectionBudget, Deadline, Handler, InFlight, Limits, Listeners,
    LocalServer, Places, PostTimeout, Request, Response, Server, SharedObserver, WhenReady,
    descriptors::most_connections, erased::Erased,
};
use crate::config::HttpConfig;

/// Shared by all servers of the agent.
pub struct Stack {
    /// `None` if requests have no deadline.
    deadline: Option<Duration>,
    places: Arc<Places>,
    post_timeout: Arc<PostTimeout>,
    unready: AskReady,
    observer: SharedObserver,
    connections: Arc<ConnectionBudget>,
    listeners: Arc<Listeners>,
    runtime: Handle,
    upkeep: [JoinHandle<()>; 2],
}

impl Stack {
    /// `unready` is called for each request that needs the whole cluster.
    ///
    /// Needs a Tokio runtime for its periodic tasks. The servers are to run on the same one.
    pub fn new(config: &HttpConfig, unready: AskReady, observer: SharedObserver) -> Self {
        let places = Arc::new(Places::new(
            config.max_requests_inflight,
            config.max_mutating_requests_inflight,
            observer.clone(),
        ));
        let post_timeout = PostTimeout::new(observer.clone());
        Self {
            deadline: config
                .per_request_deadline
                .then_some(config.request_timeout),
            upkeep: [
                tokio::spawn(Places::measure_regularly(Arc::downgrade(&places))),
                tokio::spawn(PostTimeout::sweep_regularly(Arc::downgrade(&post_timeout))),
            ],
            places,
            post_timeout,
            unready,
            connections: ConnectionBudget::new(most_connections(), observer.clone()),
            listeners: Arc::default(),
            observer,
            runtime: Handle::current(),
        }
    }

    /// Serves `handler`, inside all layers, on `listener`, which must be non-blocking. `server`
    /// names it in metrics and logs.
    ///
    /// # Errors
    ///
    /// If the runtime does not take the socket.
    pub fn serve(
        &self,
        listener: TcpListener,
        server: &'static str,
        handler: impl Handler,
        limits: Limits,
    ) -> io::Result<Server> {
        let _entered = self.runtime.enter();
        let share = self.connections.share(server, &limits);
        let listening = self.listeners.add(listener)?;
        let handler = self.wrap(server, Erased::new(handler));
        Server::start(listening, handler, limits, share)
    }

    /// The sockets of all servers but local ones.
    pub fn listeners(&self) -> &Arc<Listeners> {
        &self.listeners
    }

    /// The same on a Unix socket.
    ///
    /// # Errors
    ///
    /// If the runtime does not take the socket.
    pub fn serve_locally(
        &self,
        listener: UnixListener,
        server: &'static str,
        handler: impl Handler,
        limits: Limits,
    ) -> io::Result<LocalServer> {
        let _entered = self.runtime.enter();
        let share = self.connections.share(server, &limits);
        let handler = self.wrap(server, Erased::new(handler));
        LocalServer::start(listener, handler, limits, share)
    }

    /// `handler` inside all layers.
    fn wrap(&self, server: &'static str, handler: Erased) -> Arc<dyn AnyHandler> {
        let observer = &self.observer;
        let handler = WhenReady::new(handler, server, self.unready.clone(), observer.clone());
        let handler = InFlight::new(handler, server, self.places.clone(), observer.clone());
        Arc::new(match self.deadline {
            None => Outermost::Plain(handler),
            Some(maximum) => Outermost::Deadline(Deadline::new(
                handler,
                server,
                maximum,
                observer.clone(),
                self.post_timeout.clone(),
            )),
        })
    }

    /// The list of requests that were still being worked on at their deadline.
    pub fn post_timeout(&self) -> &Arc<PostTimeout> {
        &self.post_timeout
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for task in &self.upkeep {
            task.abort();
        }
    }
}

/// The outermost layer, with or without the feature gate `PerRequestDeadline`.
enum Outermost<H> {
    Deadline(Deadline<H>),
    Plain(H),
}

impl<H: Handler> Handler for Outermost<H> {
    fn class(&self, request: &Request) -> Class {
        match self {
            Self::Deadline(handler) => handler.class(request),
            Self::Plain(handler) => handler.class(request),
        }
    }

    async fn call(&self, request: Request) -> Response {
        match self {
            Self::Deadline(handler) => handler.call(request).await,
            Self::Plain(handler) => handler.call(request).await,
        }
    }
}
