//! The packet pipeline on the host: the kernel's code over tables in memory, without root.

mod conversation;
mod hooks;
mod scene;

mod answers;
mod budgets;
mod connections;
mod deadlines;
mod failing;
mod flow_table;
mod forget;
mod fragments;
mod garbage;
mod gone;
mod halfway;
mod hop_cache;
mod icmp;
mod layer3;
mod levels;
mod limits;
mod loads;
mod martians;
mod moving;
mod next_hops;
mod parties;
mod pressed;
mod resize;
mod resize_beside;
mod round_trip;
mod seats;
mod selection;
mod sockets;
mod stress;
mod unknown;
mod vectors;
mod waiting;
