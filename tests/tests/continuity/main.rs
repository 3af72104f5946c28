//! What must not interrupt traffic: rolling updates, restarts, churn, devices and addresses that
//! come and go, broken manifests, full tables. Needs root.

mod churn;
mod devices;
mod flap;
mod full_table;
mod handover;
mod health;
mod interrupted;
mod kills;
mod maps;
mod pins;
mod proof;
mod refit;
mod resize;
mod restart;
mod rollout;
mod source;
mod succession;
mod support;
mod trace;
mod udp;
mod verification;
mod versions;
