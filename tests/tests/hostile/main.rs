//! What an attacker, a busy client and an unlucky one do to flows: floods from spoofed sources,
//! forged segments, frames for others, short connections without end, agents that are gone, pods
//! that vanish or say nothing, callers that take up the agent's own connections. Good clients are
//! the measure. Needs root.
//!
//! `LAB_ATTACK_SECONDS` makes floods and churn last longer than the few seconds in CI.

mod astray;
mod blind;
mod callers;
mod deadlines;
mod floods;
mod forged;
mod full_endpoints;
mod ghosts;
mod greedy;
mod levels;
mod limited;
mod lingering;
mod pickup;
mod races;
mod removed;
mod short;
mod silent;
mod sockets;
mod support;
mod unattended;
mod waiting;
mod whose;
mod wide;
