//! `/explain`: what becomes of a connection, and why.

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;

use super::object;
use crate::{
    explain::{Question, Report},
    http::{Request, Response, error_status, query_value, run_blocking, too_many_requests},
    map_writer::NotInForce,
};

/// When to ask again for what is not known yet.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Explains what becomes of a connection now; that takes time.
pub type Explain = Arc<dyn Fn(&Question) -> Result<Report, Unexplained> + Send + Sync>;

/// Why there is no explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unexplained {
    /// Connection admission has nothing in force yet, and what an earlier agent has left in the maps
    /// decides.
    NotYet,
    /// The tables do not take the flow schemas.
    NoRoom(NotInForce),
}

/// What becomes of the connection that the request's parameters name.
pub async fn explain(request: &Request, explain: Explain) -> Response {
    let value = |name: &str| Some(query_value(request.uri(), name)?.into_owned());
    let question = match Question::from_query(value) {
        Ok(question) => question,
        Err(error) => return error_status(StatusCode::BAD_REQUEST, "BadRequest", error),
    };
    let code = StatusCode::INTERNAL_SERVER_ERROR;
    match run_blocking(request, move || explain(&question)).await {
        Ok(Ok(report)) => object(&report),
        Ok(Err(Unexplained::NotYet)) => too_many_requests(
            RETRY_AFTER,
            "the flow schemas and priority levels are not known yet; try again later",
        ),
        Ok(Err(Unexplained::NoRoom(error))) => error_status(code, "InternalError", error),
        Err(error) => error_status(
            code,
            "InternalError",
            format_args!("nothing was decided: {error}"),
        ),
    }
}
