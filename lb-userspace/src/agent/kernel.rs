//! The kernel's side of the agent: programs and maps, and the node's settings in them.

use std::{
    cell::Cell,
    hash::Hash,
    io,
    mem::offset_of,
    net::{IpAddr, Ipv4Addr},
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use anyhow::{Context as _, bail, ensure};
use lb_common::{
    abi::{self, config_flag},
    addr::Ip6,
};
use lb_datapath::{
    Loaded, Pins, TickRate, Tracing,
    bpf::{BatchMap, MappedArray},
    load::{LoadError, pinned_entries},
    maps::WriteError,
    mirror::Mirror,
    pins::Lock,
    socket_seats::SeatedSockets,
    trace::{Lines, TraceError},
    waiters,
};
use tokio::task::{JoinHandle, spawn_blocking};

use super::{
    flow_source::KernelFlows,
    refit::{self, Refit},
    resize::{self, Ahead, Programs, Resize, Step, Wanted},
    sizes::{HALF_OPEN, LOCAL_ADDRESSES, RECORDS_PER_FLOW, Sizes},
};
use crate::{
    config::{AdmissionMode, Config},
    flows::{
        self, FlowSweeper, FlowTables, Parties, SeatTable, ServiceCounters, Sockets, UdpSockets,
    },
    map_writer::{self, Findings, MapFill, wrong},
    plan::{LocalDetector, LocalNode},
    waiting,
};

/// What is left to exchange for a change of the maps' sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// There is none, or programs need not be exchanged any more.
    Complete,
    /// There are other programs, to be attached in the place of those that are.
    OtherPrograms,
    /// The same, and the maps of Services are others, to be opened again.
    OtherMaps,
}

/// Programs and maps in the kernel.
pub struct Kernel {
    pub pins: Arc<Pins>,
    pub loaded: Loaded,
    /// The names of those that this node needs.
    programs: Vec<&'static str>,
    /// Programs that take the place of some of them while packets are traced.
    tracing: Option<Arc<Tracing>>,
    /// The maps' sizes. While they change, those to come.
    sizes: Sizes,
    /// The number of flow records that the settings ask for.
    wanted_slots: u32,
    resize: Option<Resize>,
    /// A change of the sizes of the maps of Services, if there is one.
    refit: Option<Refit>,
    /// Why these do not have the sizes that the settings ask for, if so.
    refit_note: Option<String>,
    /// What happened to `--flow-table-size`, if it is not simply in force.
    size_note: Option<String>,
    config: MappedArray<abi::Config>,
    /// The settings as this agent has left them, once it has.
    settings: Option<abi::Config>,
    local_addresses: Mirror<Ip6, abi::LocalAddress>,
    devices: Mirror<u32, abi::Device>,
    ways_back: Mirror<u32, u32>,
    tunnel_sources: Mirror<u32, abi::TunnelSource>,
}

impl Kernel {
    /// Loads programs around the maps that an earlier agent pinned, or new ones. If those loaded
    /// ahead fit these maps, they will do.
    ///
    /// # Errors
    ///
    /// If the pins are of another version, or the kernel refuses.
    pub fn start(
        config: &Config,
        lock: Lock,
        programs: Vec<&'static str>,
        ahead: Option<Ahead>,
    ) -> anyhow::Result<Self> {
        let datapath = &config.datapath;
        let pins = Arc::new(Pins::open_locked(lock, abi::VERSION)?);
        let wanted = Sizes::wanted(datapath);
        let addresses = pinned_entries(&pins, LOCAL_ADDRESSES)?;
        if addresses.is_some_and(|size| size != wanted.local_addresses) {
            // Programs that run keep theirs until they are exchanged; the new one is full by then.
            pins.remove_map(LOCAL_ADDRESSES)?;
        }
        let ahead = Cell::new(ahead);
        let load = |sizes| {
            let programs = &programs;
            resize::begin(&pins, Wanted { sizes, programs }, ahead.take())
        };
        let started = refit::begin(&pins, wanted, load)?;
        let first = started.programs;
        let loaded = first.loaded;
        let limits = abi::Limits {
            timeouts: flows::timeouts(&config.timeouts, TickRate::of_kernel()),
            half_open_mask: HALF_OPEN - 1,
            // As for an empty table, until the first pass has counted.
            shares: [u16::MAX / 2; 2],
        };
        MappedArray::new(&loaded.map("LIMITS")?)?.write(0, &limits);
        Ok(Self {
            config: first.config,
            settings: None,
            local_addresses: mirror(&loaded, LOCAL_ADDRESSES)?,
            devices: mirror(&loaded, "DEVICES")?,
            ways_back: mirror(&loaded, "WAYS_BACK")?,
            tunnel_sources: mirror(&loaded, "TUNNEL_SOURCES")?,
            pins,
            loaded,
            tracing: None,
            sizes: started.sizes.with_slots(first.slots),
            wanted_slots: wanted.slots,
            resize: first.resize,
            refit: started.refit,
            refit_note: started.kept,
            size_note: first.kept,
            programs,
        })
    }

    /// Continues a change of the maps' sizes, once [`Self::loaded`] are attached to all devices.
    ///
    /// `failed` names a device that has kept other programs. A change that has just begun is taken
    /// back then.
    ///
    /// # Errors
    ///
    /// If the kernel refuses what it has accepted before, or a change can neither be taken back nor
    /// go on. The next start goes on with it.
    pub fn go_on(&mut self, failed: Option<&str>) -> anyhow::Result<Exchange> {
        if let Some(device) = failed
            && let Some(refit) = self.refit.take()
        {
            self.give_up_refit(refit, device)?;
            return Ok(Exchange::OtherMaps);
        }
        let Some(resize) = self.resize.take() else {
            return Ok(Exchange::Complete);
        };
        if let Some(device) = failed {
            let why = format!("programs on {device} cannot be exchanged");
            if !resize.is_first() {
                bail!("the change of the flow table's size cannot be completed: {why}");
            }
            let (from, to) = resize.records();
            let wanted = self.wanted(self.sizes.with_slots(to));
            let programs = resize::give_up(&self.pins, from, wanted, &why)?;
            self.take(programs);
            self.next_hops_changed();
            return Ok(Exchange::OtherPrograms);
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
                let wanted = self.wanted(self.sizes.with_slots(self.wanted_slots));
                self.take(resize::begin(&self.pins, wanted, None)?);
                self.size_note.get_or_insert(note);
            }
        }
        Ok(Exchange::OtherPrograms)
    }

    /// Ends a change of the sizes of the maps of Services, once [`Self::loaded`] are attached to all
    /// devices and sockets. Before, nothing may be written to these maps.
    ///
    /// # Errors
    ///
    /// If the maps before cannot be unpinned.
    pub fn finish_refit(&mut self) -> anyhow::Result<()> {
        if let Some(refit) = self.refit.take() {
            let seconds = refit.finish(&self.pins)?.as_secs_f64();
            tracing::info!(seconds, "the maps of Services have other sizes now");
        }
        Ok(())
    }

    fn give_up_refit(&mut self, refit: Refit, device: &str) -> anyhow::Result<()> {
        let sizes = self.sizes.with_slots(self.wanted_slots);
        let load = |sizes| resize::begin(&self.pins, self.wanted(sizes), None);
        let started = refit.give_up(&self.pins, sizes, device, load)?;
        self.sizes = started.sizes;
        self.refit_note = started.kept;
        self.take(started.programs);
        self.next_hops_changed();
        Ok(())
    }

    /// Gives the pins' lock back, and keeps the programs for when this agent is in charge again;
    /// `None` if the maps were about to change.
    pub fn give_way(self) -> Option<Ahead> {
        match (self.resize, self.refit) {
            (None, None) => Ahead::keep(self.loaded, &self.pins.of_maps(), self.sizes),
            _ => None,
        }
    }

    /// What to load for maps of these sizes.
    fn wanted(&self, sizes: Sizes) -> Wanted<'_> {
        Wanted {
            sizes,
            programs: &self.programs,
        }
    }

    fn take(&mut self, programs: Programs) {
        self.loaded = programs.loaded;
        self.sizes.slots = programs.slots;
        self.config = programs.config;
        self.settings = None;
        self.resize = programs.resize;
        self.size_note = programs.kept;
    }

    /// Loads programs that trace packets, on a thread that may take its time. Only once the flow
    /// tables have their size: which they have before anybody can ask for a trace.
    pub fn load_tracing(&self) -> JoinHandle<Result<(Tracing, Lines), TraceError>> {
        let (pins, settings) = (self.pins.clone(), self.sizes.settings());
        let programs = self.programs.clone();
        spawn_blocking(move || Tracing::load(&pins, &programs, settings))
    }

    /// Says which programs [`Self::program`] gives from now on.
    pub fn set_tracing(&mut self, tracing: Option<Arc<Tracing>>) {
        self.tracing = tracing;
    }

    /// Loads a program that no device has needed so far.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn ensure(&mut self, name: &'static str) -> Result<(), LoadError> {
        self.loaded.ensure(name)?;
        if !self.programs.contains(&name) {
            self.programs.push(name);
        }
        Ok(())
    }

    /// The program to attach under a name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn program(&self, name: &str) -> Result<BorrowedFd<'_>, LoadError> {
        let tracing = self.tracing.as_ref();
        match tracing.and_then(|tracing| tracing.program(name)) {
            Some(program) => Ok(program),
            None => self.loaded.program(name),
        }
    }

    /// Flows that there is room for, of IPv4, and what there is to say about that.
    pub fn flow_table_size(&self) -> (u32, Option<&str>) {
        let flows = self.sizes.slots / RECORDS_PER_FLOW;
        (flows, self.size_note.as_deref())
    }

    /// Why the maps of Services do not have the sizes that the settings ask for, if so.
    pub fn map_sizes_problem(&self) -> Option<&str> {
        self.refit_note.as_deref()
    }

    /// Whether an agent has written the node's settings, in this run or before a restart.
    pub fn is_configured(&self) -> bool {
        self.config.read(0).secret != [0, 0]
    }

    /// The node's addresses as an agent has written them, now or before a restart.
    pub fn node_addresses(&self) -> Vec<IpAddr> {
        map_writer::node_addresses(&self.config.read(0))
    }

    /// Writes the node's settings, if they are not what is there; programs that find none let every
    /// packet pass.
    ///
    /// # Errors
    ///
    /// If the system does not tell its clock or this network namespace.
    pub fn configure(
        &mut self,
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
            hop_generation: before.hop_generation,
            tick_shift: rate.shift,
            hz: rate.hz,
            flow_mask4: self.sizes.slots - 1,
            flow_mask6: self.sizes.slots / 2 - 1,
            resize: before.resize,
            resize_since: before.resize_since,
            ..abi::Config::default()
        };
        map_writer::Settings::new(config, node, detector).write(&mut settings);
        settings.flags |= before.flags & config_flag::TUNNELS;
        if config.admission.mode != AdmissionMode::Off {
            // Frontends may have the classes that an agent before gave them.
            settings.flags |= before.flags & config_flag::ADMISSION;
        }
        if settings != before {
            settings.hop_generation = before.hop_generation.wrapping_add(1);
            self.config.write(0, &settings);
        }
        self.settings = Some(settings);
        Ok(())
    }

    /// Starts ageing flows, by the settings in force.
    ///
    /// # Errors
    ///
    /// If the flow tables cannot be mapped into memory.
    pub fn sweep_flows(&mut self, seats: Arc<SeatTable>) -> anyhow::Result<FlowSweeper> {
        let tables = FlowTables {
            v4: MappedArray::new(&self.loaded.map("FLOWS4")?)?,
            v6: MappedArray::new(&self.loaded.map("FLOWS6")?)?,
        };
        let sockets = Sockets {
            udp: UdpSockets::new(BatchMap::new(&self.loaded.map("SOCKETS")?)?),
            seats: match SeatedSockets::open(&mut self.loaded) {
                Ok(seated) => Box::new(move |each| seated.for_each(each)),
                Err(error) => Box::new(move |_| Err(io::Error::other(format!("{error:#}")))),
            },
        };
        let limits = MappedArray::new(&self.loaded.map("LIMITS")?)?;
        let counters = ServiceCounters::open(&self.loaded)?;
        FlowSweeper::start(
            tables,
            &self.config.read(0),
            limits,
            counters,
            seats,
            Parties::open(&self.loaded)?,
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
            MappedArray::new(&self.loaded.map("FLOW_SCHEMAS")?)?,
        )
    }

    /// Makes flows look up their next hops again.
    pub fn next_hops_changed(&self) {
        let offset = offset_of!(abi::Config, hop_generation);
        self.config.u32_at(0, offset).fetch_add(1, Relaxed);
    }

    /// Says which addresses are the node's own, those first that matter most; how many there was no
    /// room for.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, which it does for no known reason.
    pub fn set_local_addresses(&mut self, addresses: &[IpAddr]) -> Result<usize, WriteError> {
        let own = |address: &IpAddr| ((*address).into(), abi::LocalAddress::default());
        self.local_addresses.set(addresses.iter().map(own))
    }

    /// What it takes to look after connections that wait for seats. `alarm` is the sweeper's.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the program, or maps cannot be opened.
    pub fn wait_kernel(
        &mut self,
        seats: Arc<SeatTable>,
        alarm: Box<dyn Fn() + Send>,
    ) -> anyhow::Result<waiting::Kernel> {
        self.loaded.ensure(waiters::PROGRAM)?;
        waiting::Kernel::open(&self.loaded, seats, alarm)
    }

    /// Has programs classify connections by flow schemas from now on.
    pub fn begin_admission(&mut self) {
        self.set_flag(config_flag::ADMISSION, true);
    }

    /// Sets a flag of the settings, or takes it back.
    fn set_flag(&mut self, flag: u32, is_set: bool) {
        let flags = self.config.u32_at(0, offset_of!(abi::Config, flags));
        match is_set {
            true => flags.fetch_or(flag, Relaxed),
            false => flags.fetch_and(!flag, Relaxed),
        };
        if let Some(settings) = &mut self.settings {
            match is_set {
                true => settings.flags |= flag,
                false => settings.flags &= !flag,
            }
        }
    }

    /// Compares the settings and the maps of what the node is with what was written to them, and has
    /// them hold that again.
    pub fn verify(&mut self, findings: &mut Findings) {
        self.verify_settings(findings);
        let address = |ip: &Ip6| IpAddr::from(*ip).to_string();
        verify_mirror(
            &mut self.local_addresses,
            LOCAL_ADDRESSES,
            address,
            findings,
        );
        verify_mirror(&mut self.devices, "DEVICES", u32::to_string, findings);
        verify_mirror(&mut self.ways_back, "WAYS_BACK", u32::to_string, findings);
        let sources = &mut self.tunnel_sources;
        verify_mirror(sources, "TUNNEL_SOURCES", u32::to_string, findings);
    }

    fn verify_settings(&mut self, findings: &mut Findings) {
        let found = self.config.read(0);
        let settings = *self.settings.get_or_insert(found);
        // Goes up with each change of next hops.
        let written = abi::Config {
            hop_generation: found.hop_generation,
            ..settings
        };
        let wrong = wrong(Some(&found), Some(&written));
        findings.compared("CONFIG", wrong, || "(the node's settings)".to_owned());
        if wrong.is_some() {
            self.config.write(0, &written);
            self.next_hops_changed();
        }
    }

    /// How many of them there is room for.
    pub fn local_address_table_size(&self) -> u32 {
        self.local_addresses.room()
    }

    /// How full the maps are that hold what the node itself is.
    pub fn fill(&self) -> [MapFill; 4] {
        [
            fill(LOCAL_ADDRESSES, &self.local_addresses),
            fill("DEVICES", &self.devices),
            fill("WAYS_BACK", &self.ways_back),
            fill("TUNNEL_SOURCES", &self.tunnel_sources),
        ]
    }

    /// Writes what is special about devices, by interface index. Other devices get no entry.
    ///
    /// # Errors
    ///
    /// If there are more than the map holds.
    pub fn set_devices(&mut self, devices: Vec<(u32, abi::Device)>) -> anyhow::Result<()> {
        whole(self.devices.set(devices)?, "DEVICES")
    }

    /// Writes the device that the way back to a source must lead to, by interface index, for
    /// devices where not every way back counts.
    ///
    /// # Errors
    ///
    /// If there are more than the map holds.
    pub fn set_ways_back(&mut self, ways: Vec<(u32, u32)>) -> anyhow::Result<()> {
        whole(self.ways_back.set(ways)?, "WAYS_BACK")
    }

    /// Writes the node's addresses on tunnels, by interface index.
    ///
    /// # Errors
    ///
    /// If there are more than the map holds.
    pub fn set_tunnel_sources(
        &mut self,
        sources: Vec<(u32, abi::TunnelSource)>,
    ) -> anyhow::Result<()> {
        let any = !sources.is_empty();
        whole(self.tunnel_sources.set(sources)?, "TUNNEL_SOURCES")?;
        self.set_flag(config_flag::TUNNELS, any);
        Ok(())
    }
}

/// A map that only this agent writes.
fn mirror<K, V>(loaded: &Loaded, name: &str) -> anyhow::Result<Mirror<K, V>>
where
    K: aya::Pod + Eq + Hash + Send + Sync,
    V: aya::Pod + PartialEq + Send + Sync,
{
    let map = BatchMap::new(&loaded.map(name)?)?;
    let room = map.max_entries();
    Ok(Mirror::new(map, room)?)
}

/// Compares a map with what was written to it, and has it hold that again; `name` says what a key
/// stands for.
fn verify_mirror<K, V>(
    mirror: &mut Mirror<K, V>,
    map: &'static str,
    name: impl Fn(&K) -> String,
    findings: &mut Findings,
) where
    K: Copy + Eq + Hash,
    V: Copy + PartialEq,
{
    let Some(differences) = findings.read(mirror.verify()) else {
        return;
    };
    findings.records += mirror.len().saturating_sub(differences.len()) as u64;
    for (key, found, written) in differences {
        findings.compared(map, wrong(found.as_ref(), written.as_ref()), || name(&key));
    }
}

fn fill<K, V>(map: &'static str, mirror: &Mirror<K, V>) -> MapFill
where
    K: Copy + Eq + Hash,
    V: Copy + PartialEq,
{
    MapFill {
        map,
        entries: mirror.len() as u32,
        capacity: mirror.room(),
    }
}

/// Fails if entries of a map were left out.
fn whole(left_out: usize, map: &str) -> anyhow::Result<()> {
    ensure!(
        left_out == 0,
        "map {map} is full: it has no room for {left_out} entries"
    );
    Ok(())
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
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .or_else(|_| std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    lb_datapath::bpf::netns_cookie(&socket)
}
