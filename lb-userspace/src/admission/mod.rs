//! The objects of connection admission as files, for the agent and for commands; whose addresses are;
//! and what the agent does about levels while connections come and go.

pub mod conditions;
pub mod files;
pub mod levels;
pub mod objects;
pub mod pods;
