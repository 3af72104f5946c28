//! What an attacker, a busy client or an unlucky one can do to flows: floods from spoofed sources,
//! forged segments, frames for other hosts, short connections without end, agents that are gone,
//! pods that vanish or are silent. The effect on good clients is measured. Needs root.
//!
//! `LAB_ATTACK_SECONDS` makes floods and churn last longer than the few seconds in CI.

mod astray;
mod blind;
mod floods;
mod forged;
mod ghosts;
mod greedy;
mod pickup;
mod races;
mod removed;
mod short;
mod silent;
mod support;
mod unattended;
