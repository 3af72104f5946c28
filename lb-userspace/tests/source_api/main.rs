//! The API server as a source, with an API server that does what a test says.

mod admission;
mod connection;
mod events;
mod fake;
mod follower;
mod lists;
mod objects;
mod outages;
mod server;
mod watches;
