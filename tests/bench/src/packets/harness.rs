//! The harness in the kernel, and test runs that measure a program's time per packet.

use std::{borrow::BorrowMut, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, Map, MapData, ProgramArray},
    programs::{Program, TestRun as _, TestRunOptions, Xdp},
};
use lb_common::harness::{Control, Key, Step, TABLE};
use lb_datapath::bpf::{BatchMap, MappedArray};
use nix::time::{ClockId, clock_gettime};

use super::family::Family;

pub use lb_common::harness::{ETHERNET, Network4, Network6, TRACE};

/// The verdicts of XDP programs.
pub mod action {
    pub const DROP: u32 = 1;
    pub const PASS: u32 = 2;
    pub const TX: u32 = 3;
}

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/harness"));

/// Room for the longest frame.
const FRAME: usize = 2048;

/// The harness's programs and what drives them.
pub struct Harness {
    ebpf: Ebpf,
    control: Array<MapData, Control>,
    target: ProgramArray<MapData>,
}

/// The packets of a run, as the harness writes them.
pub struct Trace<A: Family> {
    steps: MappedArray<Step<A::Network>>,
    /// The first packet. Bytes that the harness does not write are the same in all packets.
    first: Vec<u8>,
    length: u32,
    next: u32,
}

/// A test run's outcome.
pub struct Run {
    /// CPU time per packet in nanoseconds.
    pub ns: f64,
    /// The last packet's verdict.
    pub action: u32,
    /// The last packet.
    pub frame: Vec<u8>,
}

impl Harness {
    /// Loads the harness and fills the map that floors look up.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it, or the benchmark was built without an eBPF toolchain.
    pub fn load() -> Result<Self> {
        ensure!(
            !OBJECT.is_empty(),
            "this benchmark was built around a finished eBPF object, without its harness: build it \
             with an eBPF toolchain (`cargo xtask setup`)"
        );
        let mut ebpf = EbpfLoader::new()
            .load(OBJECT)
            .context("the harness does not load")?;
        for (name, program) in ebpf.programs_mut() {
            let name = name.to_owned();
            let program: &mut Xdp = program.try_into()?;
            program
                .load()
                .with_context(|| format!("the kernel refuses the harness program {name}"))?;
        }
        let control = Array::try_from(take(&mut ebpf, ".bss")?)?;
        let target = ProgramArray::try_from(take(&mut ebpf, "TARGET")?)?;
        let Map::HashMap(table) = take(&mut ebpf, "LOOKUP_TABLE")? else {
            bail!("LOOKUP_TABLE is no hash map");
        };
        let keys: Vec<Key> = (0..TABLE).map(|number| [number, 0, 0, 0]).collect();
        BatchMap::<Key, Key>::new(&table)?.update(&keys, &keys)?;
        Ok(Self {
            ebpf,
            control,
            target,
        })
    }

    /// One of the harness's programs.
    pub fn program(&self, name: &str) -> Result<&Xdp> {
        xdp(&self.ebpf, name)
    }

    /// Memory for traces of a family.
    pub fn trace<A: Family>(&mut self) -> Result<Trace<A>> {
        let Map::Array(map) = take(&mut self.ebpf, A::TRACE)? else {
            bail!("{} is no array", A::TRACE);
        };
        Ok(Trace {
            steps: MappedArray::new(&map)?,
            first: Vec::new(),
            length: 1,
            next: 0,
        })
    }

    /// Makes the harness call a program of another object.
    pub fn aim(&mut self, program: &Xdp) -> Result<()> {
        let set = self.target.set(0, program.fd()?, 0);
        set.context("the harness cannot call the program: are both for frames in fragments?")
    }

    /// Makes the harness call one of its own programs.
    pub fn aim_at_own(&mut self, name: &str) -> Result<()> {
        let program = xdp(&self.ebpf, name)?;
        Ok(self.target.set(0, program.fd()?, 0)?)
    }

    /// Sends `repeat` packets of a trace through a harness program and the program behind it.
    /// Continues where the last run ended.
    pub fn follow<A: Family>(
        &mut self,
        trace: &mut Trace<A>,
        repeat: u32,
        ifindex: u32,
    ) -> Result<Run> {
        let control = Control {
            next: trace.next,
            trace_mask: trace.length - 1,
            ..Control::default()
        };
        set_control(&mut self.control, control)?;
        trace.next = trace.next.wrapping_add(repeat);
        run(self.program(A::HARNESS)?, repeat, ifindex, &trace.first)
    }

    /// Runs a program that needs no trace.
    pub fn run(&self, name: &str, repeat: u32, ifindex: u32) -> Result<Run> {
        run(self.program(name)?, repeat, ifindex, &[0; 64])
    }

    /// Runs a floor that looks up one of `keys` entries at random.
    pub fn look_up(&mut self, name: &str, keys: u32, seed: u64, repeat: u32) -> Result<Run> {
        let control = Control {
            random: seed,
            key_mask: keys - 1,
            ..Control::default()
        };
        set_control(&mut self.control, control)?;
        run(self.program(name)?, repeat, 0, &[0; 64])
    }
}

impl<A: Family> Trace<A> {
    /// Replaces the trace with frames, at least one, that differ only where the harness writes. If
    /// their number is not a power of two, at most that many packets can be sent before
    /// [`Self::rewind`].
    pub fn set(&mut self, frames: impl ExactSizeIterator<Item = Vec<u8>>, checksum_offset: usize) {
        let length = u32::try_from(frames.len()).expect("traces are short");
        self.length = length.next_power_of_two();
        assert!(self.length <= TRACE, "a trace of {length} packets");
        self.next = 0;
        for (index, frame) in (0..).zip(frames) {
            if index == 0 {
                self.first.clone_from(&frame);
            }
            let mut checksum = [0; 4];
            checksum.copy_from_slice(&frame[checksum_offset..checksum_offset + 4]);
            let step = Step {
                network: A::network(&frame),
                checksum: u32::from_ne_bytes(checksum),
                checksum_offset: checksum_offset as u16,
                pad: 0,
            };
            self.steps.write(index, &step);
        }
    }

    /// The number of packets until the trace starts again.
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Starts the trace again.
    pub fn rewind(&mut self) {
        self.next = 0;
    }

    /// Number in the trace of the last packet that was sent.
    pub fn last(&self) -> usize {
        (self.next.wrapping_sub(1) & (self.length - 1)) as usize
    }
}

/// Runs a program on a frame `repeat` times. An interface index other than 0 names the device on
/// which the frame arrives.
pub fn run(program: &Xdp, repeat: u32, ifindex: u32, frame: &[u8]) -> Result<Run> {
    // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let context = [0, frame.len() as u32, 0, ifindex, 0, 0].map(u32::to_ne_bytes);
    let mut out = vec![0; FRAME];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: (ifindex != 0).then_some(context.as_flattened()),
        repeat,
        ..TestRunOptions::new()
    };
    // The thread's own time, so that other threads do not count.
    let before = cpu_time()?;
    let result = program.test_run(options).context("BPF_PROG_TEST_RUN")?;
    let took = cpu_time()? - before;
    out.truncate(result.data_size_out as usize);
    Ok(Run {
        ns: took.as_nanos() as f64 / f64::from(repeat),
        action: result.return_value,
        frame: out,
    })
}

/// A loaded XDP program of an object.
pub fn xdp<'a>(ebpf: &'a Ebpf, name: &str) -> Result<&'a Xdp> {
    let program: Option<&Program> = ebpf.program(name);
    Ok(program
        .with_context(|| format!("no program {name}"))?
        .try_into()?)
}

/// Takes a map out of an object.
pub fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map> {
    ebpf.take_map(name)
        .with_context(|| format!("no map {name}"))
}

fn set_control(map: &mut Array<impl BorrowMut<MapData>, Control>, control: Control) -> Result<()> {
    Ok(map.set(0, control, 0)?)
}

fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}
