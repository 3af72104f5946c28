//! Requests that write objects.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper::{Method, header::CONTENT_TYPE, http};
use kube::client::Body;
use lb_objects::ObjectRef;
use serde_json::Value;

use super::{client::exchange, connection::Connection, failure::Failure, resource::Resource};
use crate::metrics::ApiMetrics;

/// Writes objects over the connection of an [`super::ApiSource`].
pub struct ApiWriter {
    connection: Arc<Connection>,
    metrics: ApiMetrics,
}

impl ApiWriter {
    pub(super) fn new(connection: Arc<Connection>, metrics: ApiMetrics) -> Self {
        Self {
            connection,
            metrics,
        }
    }

    /// Changes the status of an object of connection admission by a merge patch, as [`Self::write`].
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn patch_status(&self, object: &ObjectRef, patch: &Value) -> Result<(), Failure> {
        let resource = Resource::of_admission(object.kind);
        let path = resource.status(&object.name.name);
        self.write(resource.name, &Method::PATCH, &path, patch)
            .await
    }

    /// Sends an object of this resource, or for PATCH a merge patch, without repeating it on
    /// failure.
    ///
    /// # Errors
    /// If the answer is not 2xx, or does not begin in time.
    pub async fn write(
        &self,
        resource: &str,
        method: &Method,
        path: &str,
        object: &Value,
    ) -> Result<(), Failure> {
        let (verb, content_type) = match *method {
            Method::PATCH => ("patch", "application/merge-patch+json"),
            _ => ("create", "application/json"),
        };
        let request = || {
            http::Request::builder()
                .method(method)
                .uri(path)
                .header(CONTENT_TYPE, content_type)
                .body(Body::from(object.to_string().into_bytes()))
        };
        let about = (resource, verb);
        // Read to the end, so that the connection can be reused.
        let read = |body: Body| async { drop(body.collect().await) };
        exchange(&self.connection, &self.metrics, about, request, read).await
    }
}
