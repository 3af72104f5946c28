//! What happens to a connection's first packet, and why: the pipeline's own decision, on tables in
//! memory.
//!
//! [`Question`] is what somebody asks, [`Situation`] what decides besides Services, [`Decision`] the
//! answer, and [`Report`] the answer as JSON, which has all that a text needs. The agent and `node-lb explain` ask here.

pub mod across;
mod decision;
mod limits;
mod named;
mod question;
mod report;
mod situation;
mod target;
#[cfg(test)]
mod tests;

pub use self::{
    decision::{Candidate, Decision, FirstPacket, Frontend, Verdict},
    limits::{InUse, Level, Limit, Numbers, Whose},
    question::Question,
    report::{FlowOf, LimitReport, Report},
    situation::{Destinations, Situation},
    target::Target,
};
