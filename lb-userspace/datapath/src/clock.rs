//! The kernel's coarse clock, jiffies, which dates flow records.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use aya_obj::generated::{
    BPF_ALU64, BPF_CALL, BPF_DW, BPF_EXIT, BPF_F_SLEEPABLE, BPF_JMP, BPF_K, BPF_MEM, BPF_MOV,
    BPF_STX, BPF_X, bpf_cmd, bpf_insn, bpf_prog_type,
};
use lb_common::abi;
use nix::time::{ClockId, clock_getres};

use crate::bpf::{bpf, empty_attr};

/// Jiffies per second, `CONFIG_HZ`.
///
/// The resolution of the coarse clocks is one jiffy.
pub fn hz() -> u32 {
    let jiffy = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_or(0, |resolution| {
        resolution.tv_sec() * 1_000_000_000 + resolution.tv_nsec()
    });
    // Every kernel since 2.6.32 has the clock. Its resolution is between 1 and 1,000 ms.
    u32::try_from((1_000_000_000 + jiffy / 2).checked_div(jiffy).unwrap_or(0)).unwrap_or(0)
}

/// The rate of the records' clock: one tick is 2^`shift` jiffies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickRate {
    /// Jiffies per second.
    pub hz: u32,
    pub shift: u32,
}

impl TickRate {
    /// The largest tick up to about a quarter of a second. That is fine enough for every timeout,
    /// and coarse enough that the record of a busy flow is written four times a second and not for
    /// every packet.
    pub fn of_kernel() -> Self {
        let hz = hz();
        Self {
            hz,
            shift: (hz / 4).max(1).ilog2(),
        }
    }

    /// The rate that the programs use; `None` while they have no settings.
    pub fn of(config: &abi::Config) -> Option<Self> {
        let sensible = config.hz != 0 && config.tick_shift < u32::BITS;
        sensible.then_some(Self {
            hz: config.hz,
            shift: config.tick_shift,
        })
    }

    /// Ticks in `duration`, rounded up; at most half of the clock's range.
    pub fn ticks(self, duration: Duration) -> u32 {
        let ticks = self.jiffies(duration).div_ceil(1 << self.shift);
        u32::try_from(ticks).unwrap_or(u32::MAX).min(u32::MAX / 2)
    }

    /// Jiffies in `duration`, rounded up.
    fn jiffies(self, duration: Duration) -> u128 {
        (duration.as_nanos() * u128::from(self.hz)).div_ceil(1_000_000_000)
    }

    /// How long `ticks` take.
    pub fn duration(self, ticks: u32) -> Duration {
        let jiffies = u128::from(ticks) << self.shift;
        let nanos = jiffies * 1_000_000_000 / u128::from(self.hz.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The tick that contains `jiffies`, as programs write it.
    pub fn tick(self, jiffies: u64) -> u32 {
        (jiffies >> self.shift) as u32
    }

    /// The [moment](lb_common::flow::slots::Slots::moment) that contains `jiffies`, likewise: an eighth of a
    /// tick.
    pub fn moment(self, jiffies: u64) -> u32 {
        (jiffies << 3 >> self.shift) as u32
    }

    /// How many moments to count from any time of one on, so that at least `duration` is over: 0 for no time.
    pub fn moments(self, duration: Duration) -> u32 {
        let whole = (self.jiffies(duration) << 3).div_ceil(1 << self.shift);
        let more = u128::from(whole != 0);
        u32::try_from(whole + more).unwrap_or(u32::MAX)
    }
}

/// Reads the kernel's `jiffies_64`: what `bpf_jiffies64()` returns.
///
/// No file and no system call returns this number, so user space runs a program of five
/// instructions that does.
#[derive(Debug)]
pub struct Jiffies {
    program: OwnedFd,
}

impl Jiffies {
    /// Loads the program. It needs the same privileges as loading the data plane.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        const JIFFIES64: i32 = 118;
        let instructions = [
            instruction(BPF_ALU64 | BPF_MOV | BPF_X, 6, 1, 0),
            instruction(BPF_JMP | BPF_CALL, 0, 0, JIFFIES64),
            instruction(BPF_STX | BPF_MEM | BPF_DW, 6, 0, 0),
            instruction(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0),
            instruction(BPF_JMP | BPF_EXIT, 0, 0, 0),
        ];
        let mut attr = empty_attr();
        // SAFETY: the union is zeroed, so that every view of it is valid.
        let load = unsafe { &mut attr.__bindgen_anon_3 };
        load.prog_type = bpf_prog_type::BPF_PROG_TYPE_SYSCALL as u32;
        load.prog_flags = BPF_F_SLEEPABLE;
        load.insns = instructions.as_ptr() as u64;
        load.insn_cnt = instructions.len() as u32;
        load.license = c"Apache-2.0".as_ptr() as u64;
        for (to, from) in load.prog_name.iter_mut().zip(c"node_lb_jiffies".to_bytes()) {
            *to = *from as libc::c_char;
        }
        let fd = bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr)?;
        Ok(Self {
            // SAFETY: the kernel just gave us this descriptor, nobody else has it.
            program: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    /// Jiffies now.
    ///
    /// # Errors
    ///
    /// The kernel's; none is expected.
    pub fn now(&self) -> io::Result<u64> {
        let mut jiffies: u64 = 0;
        let mut attr = empty_attr();
        // SAFETY: the union is zeroed, so that every view of it is valid.
        let test = unsafe { &mut attr.test };
        test.prog_fd = self.program.as_raw_fd() as u32;
        test.ctx_in = &raw mut jiffies as u64;
        test.ctx_size_in = size_of::<u64>() as u32;
        bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)?;
        // The kernel has copied the program's context back.
        Ok(jiffies)
    }
}

fn instruction(code: u32, to: u8, from: u8, immediate: i32) -> bpf_insn {
    bpf_insn {
        code: code as u8,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(to, from),
        off: 0,
        imm: immediate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_one_of_the_usual_rates() {
        assert!([100, 250, 300, 1000, 1024].contains(&hz()), "{}", hz());
    }

    #[test]
    fn ticks_and_back() {
        for hz in [100, 250, 300, 1000] {
            for shift in 0..8 {
                let rate = TickRate { hz, shift };
                for seconds in [0, 1, 5, 30, 86_400] {
                    let duration = Duration::from_secs(seconds);
                    let back = rate.duration(rate.ticks(duration));
                    assert!(back >= duration, "{rate:?} {seconds} s");
                    assert!(back - duration <= rate.duration(1), "{rate:?} {seconds} s");
                }
            }
        }
    }

    #[test]
    fn so_many_moments_later_a_time_is_over() {
        for (hz, shift) in [(100, 4), (250, 5), (1000, 7)] {
            let rate = TickRate { hz, shift };
            let jiffies = |time: Duration| (time.as_secs_f64() * f64::from(hz)).ceil() as u64;
            let longest = jiffies(Duration::from_millis(20));
            for milliseconds in [1, 5, 50, 1000, 10_000] {
                let time = Duration::from_millis(milliseconds);
                for start in 0..200 {
                    let free = rate.moment(start) + rate.moments(time);
                    let mut later = start..;
                    let first = later.find(|jiffies| rate.moment(*jiffies) == free);
                    let lasted = first.unwrap() - start;
                    let range = jiffies(time)..=jiffies(time) + 2 * longest;
                    assert!(range.contains(&lasted), "{rate:?} {time:?}: {lasted}");
                }
            }
            assert_eq!(rate.moments(Duration::ZERO), 0);
        }
    }

    #[test]
    fn a_timeout_fits_the_clock() {
        let rate = TickRate { hz: 1000, shift: 0 };
        assert_eq!(rate.ticks(Duration::MAX), u32::MAX / 2);
    }

    #[test]
    fn a_tick_is_a_quarter_of_a_second_at_most() {
        let rate = TickRate::of_kernel();
        let tick = rate.duration(1);
        let expected = Duration::from_millis(120)..=Duration::from_millis(250);
        assert!(expected.contains(&tick), "{rate:?}: {tick:?}");
    }
}
