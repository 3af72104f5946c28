//! Somebody who goes on changing what the agent has written.

use std::{
    mem::offset_of,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;
use lb_common::abi::{self, config_flag};
use lb_datapath::bpf::MappedArray;

/// Has source NAT done for all packets, though the agent goes on putting that right. Dropped, it ends.
#[derive(Debug)]
pub struct Meddler {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Meddler {
    /// Changes the settings in the maps that are pinned in this directory.
    ///
    /// # Errors
    /// If they are not there.
    pub fn start(maps: &Path) -> Result<Self> {
        let settings: MappedArray<abi::Config> = MappedArray::from_pin(&maps.join("CONFIG"))?;
        let is_over = Arc::<AtomicBool>::default();
        let over = is_over.clone();
        let meddle = move || {
            let flags = settings.u32_at(0, offset_of!(abi::Config, flags));
            while !over.load(Relaxed) {
                flags.fetch_or(config_flag::MASQUERADE_ALL, Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        };
        Ok(Self {
            is_over,
            thread: Some(thread::spawn(meddle)),
        })
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // What it changed last, the agent puts right.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
