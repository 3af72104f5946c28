//! An API server in this process: each request waits until the test answers it. No sockets, so that
//! tests run in paused time.

use std::{collections::HashMap, error::Error, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Method, Request, Response, Uri, body::Frame};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

type BoxError = Box<dyn Error + Send + Sync>;
type Chunk = Result<Bytes, BoxError>;
type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Longer than any wait of the source.
const PATIENCE: Duration = Duration::from_secs(1200);

/// The requests for each resource, in order.
pub struct FakeApi {
    calls: HashMap<&'static str, mpsc::Receiver<Call>>,
}

/// A request that waits for its answer. If it is dropped, its connection breaks.
pub struct Call {
    pub method: Method,
    pub path: String,
    /// The object that was sent, if any.
    pub object: Value,
    pub query: HashMap<String, String>,
    pub at: Instant,
    reply: oneshot::Sender<Response<Body>>,
}

/// The rest of an answer that has begun.
pub struct Stream(mpsc::Sender<Chunk>);

impl FakeApi {
    /// The server, and a client that is connected only to it.
    pub fn start() -> (Self, kube::Client) {
        let names = [
            "services",
            "endpointslices",
            "nodes",
            "pods",
            "events",
            "prioritylevels",
            "flowschemas",
            "namespaces",
            "servicecidrs",
        ];
        let (senders, calls): (HashMap<_, _>, HashMap<_, _>) = names
            .into_iter()
            .map(|name| {
                let (sender, receiver) = mpsc::channel(16);
                ((name, sender), (name, receiver))
            })
            .unzip();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let mut segments = request.uri().path().rsplit('/');
            let sender = segments.find_map(|segment| senders.get(segment));
            let sender = sender.expect("a resource").clone();
            async move {
                let (reply, answer) = oneshot::channel();
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let call = Call {
                    method: head.method,
                    path: head.uri.path().to_owned(),
                    object: serde_json::from_slice(&body).unwrap_or_default(),
                    query: query(&head.uri),
                    at: Instant::now(),
                    reply,
                };
                sender.send(call).await?;
                answer
                    .await
                    .map_err(|_| BoxError::from("connection refused"))
            }
        });
        (Self { calls }, kube::Client::new(service, "default"))
    }

    /// The next request for a resource.
    pub async fn next(&mut self, resource: &str) -> Call {
        let calls = self.calls.get_mut(resource).expect("a resource");
        let call = timeout(PATIENCE, calls.recv()).await;
        call.expect("a request in time").expect("a running source")
    }

    /// The next request for a resource if it comes within this time.
    pub async fn next_within(&mut self, resource: &str, time: Duration) -> Option<Call> {
        let calls = self.calls.get_mut(resource).expect("a resource");
        timeout(time, calls.recv()).await.ok().flatten()
    }

    /// Asserts that there is no request for a resource for as long as this.
    pub async fn silent(&mut self, resource: &str, time: Duration) {
        let calls = self.calls.get_mut(resource).expect("a resource");
        if let Ok(Some(call)) = timeout(time, calls.recv()).await {
            panic!("unexpected request {:?}", call.query);
        }
    }

    /// From now on every request for a resource gets an empty answer.
    pub fn serve_empty(&mut self, resource: &'static str) {
        let mut calls = self.calls.remove(resource).expect("a resource");
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Some(call) = calls.recv().await {
                let stream = call.stream();
                stream.bookmark(1, true).await;
                open.push(stream);
            }
        });
    }
}

impl Call {
    /// A parameter of the query.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.query.get(key).map(String::as_str)
    }

    pub fn is_watch(&self) -> bool {
        self.get("watch") == Some("true")
    }

    /// Whether a list is requested, in any form.
    pub fn is_list(&self) -> bool {
        !self.is_watch() || self.get("sendInitialEvents") == Some("true")
    }

    /// Answers 200, and continues as the test says.
    pub fn stream(self) -> Stream {
        let (sender, receiver) = mpsc::channel(16);
        let chunks = stream::unfold(receiver, next_chunk);
        let body = StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data)));
        self.answer(200, &[], body.boxed_unsync());
        Stream(sender)
    }

    /// Answers with a page of a list.
    pub async fn page(self, version: u64, token: &str, items: &[Value]) {
        let list = json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": {"resourceVersion": version.to_string(), "continue": token},
            "items": items,
        });
        self.stream().text(list.to_string()).await;
    }

    /// Answers that an object has been written.
    pub fn written(self) {
        let body = http_body_util::Full::new(Bytes::from_static(b"{}"));
        let body = body.map_err(|never| match never {}).boxed_unsync();
        self.answer(201, &[], body);
    }

    /// Answers with an error.
    pub fn refuse(self, code: u16, retry_after: Option<u64>) {
        let retry_after = retry_after.map(|seconds| seconds.to_string());
        let headers: Vec<_> = retry_after
            .iter()
            .map(|seconds| ("retry-after", seconds.as_str()))
            .collect();
        let status = json!({"kind": "Status", "code": code, "message": format!("no: {code}")});
        let body = http_body_util::Full::new(Bytes::from(status.to_string()));
        let body = body.map_err(|never| match never {}).boxed_unsync();
        self.answer(code, &headers, body);
    }

    fn answer(self, code: u16, headers: &[(&str, &str)], body: Body) {
        let mut answer = Response::builder().status(code);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        // It is no error if the source has stopped waiting.
        let _ = self.reply.send(answer.body(body).unwrap());
    }
}

impl Stream {
    /// Sends text as it is.
    pub async fn text(&self, text: impl Into<String>) {
        let _ = self.0.send(Ok(Bytes::from(text.into()))).await;
    }

    pub async fn event(&self, kind: &str, object: &Value) {
        self.text(format!("{}\n", json!({"type": kind, "object": object})))
            .await;
    }

    pub async fn bookmark(&self, version: u64, initial_events_end: bool) {
        let annotations = match initial_events_end {
            true => json!({"k8s.io/initial-events-end": "true"}),
            false => json!({}),
        };
        let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
        self.event("BOOKMARK", &json!({"metadata": metadata})).await;
    }

    /// An ERROR event.
    pub async fn error(&self, code: u16, reason: &str, retry_after: u64) {
        let status = json!({
            "kind": "Status", "code": code, "reason": reason,
            "details": {"retryAfterSeconds": retry_after},
        });
        self.event("ERROR", &status).await;
    }

    /// Whether the source has dropped the request.
    pub fn is_dropped(&self) -> bool {
        self.0.is_closed()
    }

    /// Breaks the connection.
    pub async fn cut(self) {
        let _ = self.0.send(Err("connection reset".into())).await;
    }
}

async fn next_chunk(mut receiver: mpsc::Receiver<Chunk>) -> Option<(Chunk, mpsc::Receiver<Chunk>)> {
    Some((receiver.recv().await?, receiver))
}

fn query(uri: &Uri) -> HashMap<String, String> {
    let query = uri.query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect()
}
