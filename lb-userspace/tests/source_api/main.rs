//! The API server as a source, against an API server that does what a test tells it to.

mod connection;
mod events;
mod fake;
mod follower;
mod lists;
mod objects;
mod outages;
mod server;
mod watches;
