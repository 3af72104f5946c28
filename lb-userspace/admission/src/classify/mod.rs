//! Which flow schema takes a connection, and which flow it belongs to.
//!
//! [`matching`] asks schema after schema. It is easy to follow and can say why a rule does not
//! match. [`Classifier`] gives the same answer in a bounded number of steps, from tables that could
//! be kernel maps.

mod bits;
mod compiled;
mod connection;
mod distinguisher;
mod interned;
pub mod matching;
mod prefixes;

pub use self::{
    compiled::{Classifier, DestinationClass, IdentityClass, Key},
    connection::{Connection, Identities, Identity, ServiceFrontend},
    distinguisher::{Distinguisher, MAX_DISTINGUISHER, TextBuffer, source_of},
};
