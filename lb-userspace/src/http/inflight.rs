//! Limits how many requests are served at a time.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::{
    Method, StatusCode,
    header::{HeaderValue, RETRY_AFTER},
};
use tokio::time::interval;

use super::{Class, Handler, Request, Response, SharedObserver, running::Running, text};

/// The observer is told the highest number in each period of this length.
const WATERMARK_PERIOD: Duration = Duration::from_secs(1);

/// The most streams (watch, follow) at a time: each one costs memory, and its client may stay for
/// ever.
const STREAMS: usize = 64;

/// How many requests may be served at a time, by all servers together: `--max-requests-inflight`
/// and `--max-mutating-requests-inflight`, and a fixed number of streams. Requests of one kind
/// never take places of another.
pub struct Places {
    read_only: Arc<Kind>,
    mutating: Arc<Kind>,
    streams: Arc<Kind>,
    observer: SharedObserver,
}

#[derive(Debug)]
struct Kind {
    /// Zero means no limit.
    limit: usize,
    taken: AtomicUsize,
    /// The most places taken in this period.
    high: Mutex<usize>,
    /// The kind's name, for the observer.
    name: &'static str,
}

impl Places {
    /// Zero means no limit.
    pub fn new(read_only: usize, mutating: usize, observer: SharedObserver) -> Self {
        let kind = |limit, name| {
            Arc::new(Kind {
                limit,
                taken: AtomicUsize::new(0),
                high: Mutex::new(0),
                name,
            })
        };
        Self {
            read_only: kind(read_only, "readOnly"),
            mutating: kind(mutating, "mutating"),
            streams: kind(STREAMS, "stream"),
            observer,
        }
    }

    /// Reports to the observer until the places are dropped.
    pub(super) async fn measure_regularly(places: Weak<Self>) {
        let mut periods = interval(WATERMARK_PERIOD);
        loop {
            periods.tick().await;
            let Some(places) = places.upgrade() else {
                return;
            };
            for kind in [&places.read_only, &places.mutating, &places.streams] {
                places.observer.in_flight(kind.name, kind.end_period());
            }
        }
    }

    /// The places of which a request takes one; `None` if it needs none.
    fn kind(&self, class: Class, method: &Method) -> Option<&Arc<Kind>> {
        match (class, method) {
            (Class::Probe, _) => None,
            (Class::Stream, _) => Some(&self.streams),
            (Class::Bounded | Class::Wide, &Method::GET | &Method::HEAD) => Some(&self.read_only),
            (Class::Bounded | Class::Wide, _) => Some(&self.mutating),
        }
    }
}

impl Kind {
    fn take(self: &Arc<Self>) -> Option<Place> {
        let limit = match self.limit {
            0 => usize::MAX,
            limit => limit,
        };
        let more = |taken| (taken < limit).then_some(taken + 1);
        let before = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        before.is_ok().then(|| {
            self.note();
            Place(self.clone())
        })
    }

    fn note(&self) {
        let mut high = self.high.lock().unwrap_or_else(PoisonError::into_inner);
        *high = (*high).max(self.taken.load(Ordering::Relaxed));
    }

    /// The most places taken in the period, which ends now.
    fn end_period(&self) -> usize {
        let mut high = self.high.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *high, self.taken.load(Ordering::Relaxed))
    }
}

/// A request's place; dropping it frees the place.
struct Place(Arc<Kind>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.note();
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Refuses requests for which there is no place with 429 and `Retry-After: 1`, as kube-apiserver
/// does without Priority and Fairness. A request keeps its place until its client has the answer
/// and nothing works on it any more, whichever is later. Probes need no place.
pub struct InFlight<H> {
    handler: H,
    server: &'static str,
    places: Arc<Places>,
    observer: SharedObserver,
}

impl<H: Handler> InFlight<H> {
    pub fn new(
        handler: H,
        server: &'static str,
        places: Arc<Places>,
        observer: SharedObserver,
    ) -> Self {
        Self {
            handler,
            server,
            places,
            observer,
        }
    }
}

impl<H: Handler> Handler for InFlight<H> {
    fn class(&self, request: &Request) -> Class {
        self.handler.class(request)
    }

    async fn call(&self, mut request: Request) -> Response {
        let class = self.class(&request);
        let Some(kind) = self.places.kind(class, request.method()) else {
            return self.handler.call(request).await;
        };
        let Some(place) = kind.take() else {
            let code = StatusCode::TOO_MANY_REQUESTS;
            self.observer.terminated(self.server, code);
            let mut refusal = text(code, "Too many requests, please try again later.");
            let headers = refusal.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            return refusal;
        };
        let running = Running::of(&mut request);
        running.hold(place);
        let response = self.handler.call(request).await;
        response.map(|body| body.part_of(running))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::observer::tests::Observed;

    #[test]
    fn kinds_are_apart_and_zero_is_no_limit() {
        let places = Places::new(1, 0, Arc::new(Observed::default()));
        let take = |class, method| places.kind(class, &method).unwrap().take();
        let first = take(Class::Bounded, Method::GET);
        assert!(first.is_some());
        assert!(take(Class::Wide, Method::HEAD).is_none());
        let mutating: Vec<_> = (0..1000)
            .map(|_| take(Class::Bounded, Method::POST))
            .collect();
        assert!(mutating.iter().all(Option::is_some));
        drop(first);
        assert!(take(Class::Bounded, Method::GET).is_some());
        let streams: Vec<_> = (0..STREAMS)
            .map(|_| take(Class::Stream, Method::GET))
            .collect();
        assert!(streams.iter().all(Option::is_some));
        assert!(take(Class::Stream, Method::GET).is_none());
        assert!(places.kind(Class::Probe, &Method::GET).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_highest_number_of_each_second_is_observed() {
        let observed = Arc::new(Observed::default());
        let places = Arc::new(Places::new(10, 10, observed.clone()));
        tokio::spawn(Places::measure_regularly(Arc::downgrade(&places)));
        let half = Duration::from_millis(500);
        tokio::time::sleep(half).await;
        let most = |number| {
            let told = observed.take();
            assert_eq!(told[0], format!("readOnly: {number}"), "{told:?}");
        };
        let kind = places.kind(Class::Bounded, &Method::GET).unwrap();
        let mut taken: Vec<_> = (0..3).map(|_| kind.take()).collect();
        taken.truncate(1);
        most(0);
        tokio::time::sleep(2 * half).await;
        most(3);
        tokio::time::sleep(2 * half).await;
        most(1);
        drop(taken);
        tokio::time::sleep(2 * half).await;
        observed.take();
        tokio::time::sleep(2 * half).await;
        most(0);
    }
}
