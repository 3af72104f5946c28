//! The status page: what the local API says, for people with a browser.
//!
//! The page is a handful of files in this binary. Its scripts ask the local API, and nothing else.
//! The local API serves it as well, to whoever forwards a port to its socket; on an address of its
//! own there is only what the page itself needs.

mod bundle;

use std::sync::Arc;

use hyper::{
    Method, StatusCode, Uri,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue},
    http::uri::Authority,
};

use super::local_api::{LocalApi, PAGE_PATHS, SharedApi};
use crate::{
    health::readiness::Readiness,
    http::{
        Class, Handler, InFlight, Places, Request, Response, SharedObserver, error_status,
        not_found, response,
    },
};

/// What browsers have to keep from the page: nothing comes from elsewhere, no script or style stands
/// in a document, no other site shows the page in a frame, and no text becomes HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of all answers to browsers.
const HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    // A new agent has a new page.
    (CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
];

/// A file of the page; `None` if there is none at this path.
pub fn file(path: &str) -> Option<Response> {
    let (content_type, content) = bundle::file(path)?;
    Some(guarded(response(StatusCode::OK, content_type, content)))
}

/// What the page on an address of its own may have worked on at a time: what one browser asks, and another
/// one. Some questions take a processor for a while, and whoever reaches the address can ask them.
const AT_A_TIME: usize = 8;

/// Serves the page, and of the local API what the page asks, on an address of its own. Everything
/// can only be read.
pub struct StatusPage(InFlight<SharedApi>);

impl StatusPage {
    /// `observer` is told of requests that are too many.
    pub fn new(api: SharedApi, observer: SharedObserver) -> Self {
        let places = Arc::new(Places::new(AT_A_TIME, AT_A_TIME, observer.clone()));
        Self(InFlight::new(api, "page", places, observer))
    }
}

impl Handler for StatusPage {
    fn class(&self, request: &Request) -> Class {
        match is_for_the_page(request.uri()) {
            true => self.0.class(request),
            false => Class::Bounded,
        }
    }

    async fn call(&self, request: Request) -> Response {
        if !is_addressed_by_number(&request) {
            let message = "the status page answers only to IP addresses and localhost, so that no other site can read \
                           it through a name of its own: use the node's address";
            return error_status(StatusCode::FORBIDDEN, "Forbidden", message);
        }
        let path = request.uri().path();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if let Some(file) = file(path).filter(|_| is_read) {
            return file;
        }
        guarded(match is_for_the_page(request.uri()) {
            true => self.0.call(request).await,
            false => not_found(),
        })
    }
}

/// Whether the page asks for such a path. Streams are not for whoever can reach an address: each of them
/// takes a place for as long as its client likes.
fn is_for_the_page(uri: &Uri) -> bool {
    let path = uri.path();
    let is_below = |known: &str| {
        path.strip_prefix(known)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    let is_known = Readiness::serves(path)
        || PAGE_PATHS
            .iter()
            .any(|known| path == *known || is_below(known));
    is_known && !LocalApi::is_stream(uri)
}

/// Whether a request names its server by an address, or as `localhost`.
///
/// A name would be somebody's who can let it stand for the node's address as soon as a browser has his
/// site open (DNS rebinding): to the browser, the page would be a part of that site.
fn is_addressed_by_number(request: &Request) -> bool {
    let authority = match request.uri().authority() {
        Some(authority) => Some(authority.clone()),
        None => {
            let host = request.headers().get(HOST);
            host.and_then(|host| Authority::try_from(host.as_bytes()).ok())
        }
    };
    authority.is_some_and(|authority| {
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        host.eq_ignore_ascii_case("localhost")
            || bare.unwrap_or(host).parse::<std::net::IpAddr>().is_ok()
    })
}

/// An answer with what browsers have to mind.
fn guarded(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}
