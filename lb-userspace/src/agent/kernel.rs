//! The kernel's side of the agent: programs and maps, and the node's settings in them.

use std::{collections::BTreeSet, io, net::IpAddr};

use anyhow::{Context as _, bail};
use lb_common::{abi, addr::Ip6};
use lb_datapath::{
    Loaded, Pins, TickRate,
    bpf::{BatchMap, MappedArray},
};

use super::{
    flow_source::KernelFlows,
    resize::{self, Programs, Resize, Step},
    sizes::{HALF_OPEN, RECORDS_PER_FLOW, slots},
};
use crate::{
    config::Config,
    flows::{self, FlowSweeper, FlowTables, ServiceCounters, UdpSockets},
    map_writer,
    plan::{LocalDetector, LocalNode},
};

/// Programs and maps in the kernel.
pub struct Kernel {
    pub pins: Pins,
    pub loaded: Loaded,
    /// Records of `FLOWS4`; `FLOWS6` has half as many. During a change of size, the new number.
    slots: u32,
    /// The number of records that the settings ask for.
    wanted: u32,
    resize: Option<Resize>,
    /// What happened to `--flow-table-size`, if it is not simply in force.
    size_note: Option<String>,
    config: MappedArray<abi::Config>,
    local_addresses: BatchMap<Ip6, abi::LocalAddress>,
    devices: BatchMap<u32, abi::Device>,
    ways_back: BatchMap<u32, u32>,
}

impl Kernel {
    /// Loads programs around the maps that an earlier agent pinned, or new ones.
    ///
    /// # Errors
    ///
    /// If the pins are of another version or in use, or the kernel refuses.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        let datapath = &config.datapath;
        let pins = Pins::open(&datapath.bpf_root, abi::VERSION)?;
        let wanted = slots(datapath.flow_table_size);
        let programs = resize::begin(&pins, wanted)?;
        let loaded = programs.loaded;
        let limits = abi::Limits {
            timeouts: flows::timeouts(&config.timeouts, TickRate::of_kernel()),
            half_open_mask: HALF_OPEN - 1,
            // As for an empty table, until the first pass has counted.
            shares: [u16::MAX / 2; 2],
        };
        MappedArray::new(&loaded.map("LIMITS")?)?.write(0, &limits);
        Ok(Self {
            config: programs.config,
            local_addresses: BatchMap::new(&loaded.map("LOCAL_ADDRESSES")?)?,
            devices: BatchMap::new(&loaded.map("DEVICES")?)?,
            ways_back: BatchMap::new(&loaded.map("WAYS_BACK")?)?,
            pins,
            loaded,
            slots: programs.slots,
            wanted,
            resize: programs.resize,
            size_note: programs.kept,
        })
    }

    /// Continues a change of the flow tables' size, once [`Self::loaded`] are attached to all
    /// devices. Returns whether there are other programs now, which are to be attached in their
    /// place.
    ///
    /// `failed` names a device that has kept other programs. A change that has just begun is taken
    /// back then.
    ///
    /// # Errors
    ///
    /// If the kernel refuses what it has accepted before, or a change can neither be taken back nor
    /// go on. The next start goes on with it.
    pub fn go_on(&mut self, failed: Option<&str>) -> anyhow::Result<bool> {
        let Some(resize) = self.resize.take() else {
            return Ok(false);
        };
        if let Some(device) = failed {
            let why = format!("programs on {device} cannot be exchanged");
            if !resize.is_first() {
                bail!("the flow table's size cannot be changed to the end: {why}");
            }
            let (from, to) = resize.records();
            self.take(resize::give_up(&self.pins, from, to, &why)?);
            self.next_hops_changed();
            return Ok(true);
        }
        match resize.go_on(&self.loaded, &self.config, &self.pins)? {
            Step::Attach(next) => {
                let (programs, resize) = *next;
                self.loaded = programs;
                self.resize = Some(resize);
            }
            Step::Done(done) => {
                let note = done.to_string();
                match done.left {
                    0 => tracing::info!("{note}"),
                    _ => tracing::warn!("{note}"),
                }
                self.take(resize::begin(&self.pins, self.wanted)?);
                self.size_note.get_or_insert(note);
            }
        }
        Ok(true)
    }

    fn take(&mut self, programs: Programs) {
        self.loaded = programs.loaded;
        self.slots = programs.slots;
        self.config = programs.config;
        self.resize = programs.resize;
        self.size_note = programs.kept;
    }

    /// How many IPv4 flows there is room for, and a note about that if there is one.
    pub fn flow_table_size(&self) -> (u32, Option<&str>) {
        (self.slots / RECORDS_PER_FLOW, self.size_note.as_deref())
    }

    /// Whether an agent has written the node's settings, in this run or before a restart.
    pub fn is_configured(&self) -> bool {
        self.config.read(0).secret != [0, 0]
    }

    /// Writes the node's settings; programs that find none let every packet pass.
    ///
    /// # Errors
    ///
    /// If the system does not tell its clock or this network namespace.
    pub fn configure(
        &self,
        config: &Config,
        node: &LocalNode,
        detector: &LocalDetector,
    ) -> anyhow::Result<()> {
        let before = self.config.read(0);
        let rate = TickRate::of_kernel();
        let mut settings = abi::Config {
            // Flows are found only with the secret with which they were recorded.
            secret: match before.secret {
                [0, 0] => secret()?,
                secret => secret,
            },
            netns_cookie: netns_cookie().context("cannot tell the network namespace")?,
            hop_generation: before.hop_generation.wrapping_add(1),
            tick_shift: rate.shift,
            hz: rate.hz,
            flow_mask4: self.slots - 1,
            flow_mask6: self.slots / 2 - 1,
            resize: before.resize,
            resize_since: before.resize_since,
            ..abi::Config::default()
        };
        map_writer::Settings::new(config, node, detector).write(&mut settings);
        self.config.write(0, &settings);
        Ok(())
    }

    /// Starts ageing flows, by the settings in force.
    ///
    /// # Errors
    ///
    /// If the flow tables cannot be mapped into memory.
    pub fn sweep_flows(&self) -> anyhow::Result<FlowSweeper> {
        let tables = FlowTables {
            v4: MappedArray::new(&self.loaded.map("FLOWS4")?)?,
            v6: MappedArray::new(&self.loaded.map("FLOWS6")?)?,
        };
        let sockets = UdpSockets::new(BatchMap::new(&self.loaded.map("SOCKETS")?)?);
        let limits = MappedArray::new(&self.loaded.map("LIMITS")?)?;
        let counters = ServiceCounters::open(&self.loaded)?;
        FlowSweeper::start(
            tables,
            &self.config.read(0),
            limits,
            counters,
            Some(sockets),
        )
        .context("cannot start ageing flows")
    }

    /// The flow tables, to be shown.
    ///
    /// # Errors
    ///
    /// If the kernel's clock cannot be read.
    pub fn flows(&self) -> anyhow::Result<KernelFlows> {
        KernelFlows::new(
            self.loaded.map("FLOWS4")?,
            self.loaded.map("FLOWS6")?,
            MappedArray::new(&self.loaded.map("CONFIG")?)?,
        )
    }

    /// Makes flows look up their next hops again.
    pub fn next_hops_changed(&self) {
        let offset = std::mem::offset_of!(abi::Config, hop_generation);
        self.config
            .u32_at(0, offset)
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Writes the addresses of the node itself.
    ///
    /// # Errors
    ///
    /// If there are more than the map holds.
    pub fn set_local_addresses(&self, addresses: &BTreeSet<IpAddr>) -> anyhow::Result<()> {
        let own = |address: &IpAddr| ((*address).into(), abi::LocalAddress::default());
        let own: Vec<_> = addresses.iter().map(own).collect();
        Ok(self.local_addresses.replace(&own)?)
    }

    /// Writes what is special about devices, by interface index. Other devices get no entry.
    ///
    /// # Errors
    ///
    /// If there are more than the map holds.
    pub fn set_devices(&self, devices: &[(u32, abi::Device)]) -> anyhow::Result<()> {
        Ok(self.devices.replace(devices)?)
    }

    /// Writes the device that the way back to a source must lead to, by interface index, for
    /// devices where not every way back counts.
    ///
    /// # Errors
    ///
    /// If there are more than the map holds.
    pub fn set_ways_back(&self, ways: &[(u32, u32)]) -> anyhow::Result<()> {
        Ok(self.ways_back.replace(ways)?)
    }
}

fn secret() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    let [low, high] = [0, 8].map(|at| {
        let mut half = [0; 8];
        half.copy_from_slice(&bytes[at..at + 8]);
        // Never zero, which stands for no secret.
        u64::from_ne_bytes(half) | 1
    });
    Ok([low, high])
}

/// The number by which BPF programs know this network namespace.
fn netns_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0))
        .or_else(|_| std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)))?;
    lb_datapath::bpf::netns_cookie(&socket)
}
