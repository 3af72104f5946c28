//! Changes the size of the flow tables while traffic runs.
//!
//! A table of another size is another map, and programs are loaded with one or the other. Between
//! the programs before and after the change there are two more kinds. Each kind replaces the
//! previous one on all devices:
//!
//! | Programs | open flows in | also know |
//! |---|---|---|
//! | before | the present tables | |
//! | first | the present tables | the next ones |
//! | second | the next tables | the present ones |
//! | afterwards | the next tables | |
//!
//! So any two kinds of programs that run at the same time see each other's flows: flows that are
//! only in the table which they also know, they copy (see [`lb_common::flow::resize`]). Once all
//! programs are of the second kind, a program copies what is left. It runs in the kernel, where
//! nothing can stop it in the middle of a flow.
//!
//! The next tables are pinned as `FLOWS4_NEXT` and `FLOWS6_NEXT`. `CONFIG_NEXT` holds the settings
//! of the second kind, and how far the change has come ([`resize_stage`]). An agent that finds them
//! takes the change back, or goes on with it.

use std::{
    mem::offset_of,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use lb_common::{
    abi::{self, COPY_BATCH, copy_word, resize_stage},
    addr::{Address, Family, Ip4, Ip6},
    flow::{Flow, flow_flag, tag},
};
use lb_datapath::{
    Loaded, OBJECT, Pins,
    bpf::{MappedArray, Words, run_classifier, synchronize_rcu},
    load::{self, LoadError, load, pinned_entries},
    pins::{MapPins, PinError},
};

use super::sizes::{RECORDS_PER_FLOW, Sizes};
use crate::flows::Records;

const CONFIG: &str = "CONFIG";
const CONFIG_NEXT: &str = "CONFIG_NEXT";
/// Names of the tables' pins for IPv4 and IPv6, each with that of the next table.
const TABLES: [(&str, &str); 2] = [("FLOWS4", "FLOWS4_NEXT"), ("FLOWS6", "FLOWS6_NEXT")];
/// The names by which programs know the other tables and their masks.
const OTHER_TABLES: [&str; 2] = ["OTHER_FLOWS4", "OTHER_FLOWS6"];
const OTHER_MASKS: [&str; 2] = ["OTHER_MASK4", "OTHER_MASK6"];
/// The program that copies flows.
const COPY_PROGRAM: &str = "copy_flows";
/// How many passes try to copy a flow. Meanwhile flows end, which makes room.
const PASSES: usize = 3;
/// The part of a table's room that flows may take when they are copied into it. With more, some
/// flows would not find a place.
const FILLED: (u32, u32) = (3, 4);

/// What to load.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub sizes: Sizes,
    /// The names of the programs that this node needs.
    pub programs: &'a [&'static str],
}

impl Wanted<'_> {
    fn with_slots(self, slots: u32) -> Self {
        Self {
            sizes: self.sizes.with_slots(slots),
            ..self
        }
    }
}

/// Programs to attach, and the flow tables that they use, now or at the end of the change.
pub struct Programs {
    pub loaded: Loaded,
    /// Records of IPv4's table. IPv6's has half as many.
    pub slots: u32,
    /// The settings for these tables.
    pub config: MappedArray<abi::Config>,
    /// The change that these programs are part of; `None` if there is none.
    pub resize: Option<Resize>,
    /// Why the tables do not and will not have the wanted size; `None` if they do or will.
    pub kept: Option<String>,
}

/// Programs that were loaded before this agent had the place, or that it keeps since it gave way.
#[derive(Debug)]
pub struct Ahead {
    sizes: Sizes,
    programs: Box<load::Ahead>,
}

/// A change of the tables' size under way.
pub struct Resize {
    /// Records of IPv4's table, before and after the change.
    from: u32,
    to: u32,
    /// Programs of the second kind, as long as those to attach are of the first.
    second: Option<Loaded>,
    began: Instant,
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// How many flows there was room for before the change, and how many now.
    pub from: u32,
    pub to: u32,
    /// Flows that the agent has copied. The others were copied when their packets came.
    pub copied: u64,
    /// Flows for which there was no room.
    pub left: u64,
    pub took: Duration,
}

impl Ahead {
    /// Loads programs; `None` if the maps that are pinned have other sizes.
    pub fn load(pins: &MapPins, wanted: Wanted<'_>) -> Option<Self> {
        let Wanted { sizes, programs } = wanted;
        match load::Ahead::load(OBJECT, pins, programs, &sizes.settings()) {
            Ok(programs) => Some(Self::new(sizes, programs?)),
            Err(error) => {
                // If it concerns this agent, it will say so once it has the place.
                tracing::debug!("cannot load programs ahead: {error}");
                None
            }
        }
    }

    /// Keeps programs for maps of these sizes.
    pub fn keep(loaded: Loaded, pins: &MapPins, sizes: Sizes) -> Option<Self> {
        let programs = load::Ahead::keep(loaded, pins).ok()?;
        Some(Self::new(sizes, programs))
    }

    fn new(sizes: Sizes, programs: load::Ahead) -> Self {
        let programs = Box::new(programs);
        Self { sizes, programs }
    }

    /// Whether the maps that are pinned are still those of these programs.
    pub fn fits(&self, pins: &MapPins) -> bool {
        self.programs.fits(pins).unwrap_or(false)
    }

    /// The programs, if they are for maps of these sizes, and for the maps that are pinned.
    fn take_over(self, pins: &Pins, sizes: Sizes) -> Option<Loaded> {
        match self.sizes == sizes {
            true => self.programs.take_over(pins).ok()?,
            false => None,
        }
    }
}

/// The programs to start with for maps of the sizes wanted: programs of the first kind if that is a
/// change of the flow tables' size, and of the second kind if an agent was interrupted during one.
/// If there is no change, those loaded ahead will do.
///
/// # Errors
///
/// If pins cannot be read or changed, or the kernel refuses what it has taken before. That the
/// tables cannot have the size wanted is none.
pub fn begin(pins: &Pins, wanted: Wanted<'_>, ahead: Option<Ahead>) -> anyhow::Result<Programs> {
    let slots = wanted.sizes.slots;
    if recover(pins)? {
        let [(present, next), _] = TABLES;
        let records = |pin| pinned_entries(pins, pin)?.context("a flow table's pin is gone");
        let (from, to) = (records(present)?, records(next)?);
        tracing::info!("continuing an interrupted change of the flow table's size");
        let resize = Resize::new(from, to, None);
        let second = second(pins, from, to, wanted)?;
        return programs(pins, second, to, Some(resize));
    }
    let [(table, _), _] = TABLES;
    let present = pinned_entries(pins, table)?.unwrap_or(slots);
    if present == slots {
        return match ahead.and_then(|ahead| ahead.take_over(pins, wanted.sizes)) {
            Some(loaded) => {
                tracing::info!("going on with programs that were loaded ahead");
                programs(pins, loaded, slots, None)
            }
            None => steady(pins, wanted),
        };
    }
    let (from, to) = (present / RECORDS_PER_FLOW, slots / RECORDS_PER_FLOW);
    match prepare(pins, present, slots, wanted) {
        Ok(programs) => {
            tracing::info!(from, to, "changing the flow table's size, in flows");
            Ok(programs)
        }
        Err(error) => {
            let why = format!("{error:#}");
            give_up(pins, present, wanted, &why)
        }
    }
}

/// Keeps the tables as they are, and returns programs for them.
///
/// # Errors
///
/// As [`begin`].
pub fn give_up(
    pins: &Pins,
    present: u32,
    wanted: Wanted<'_>,
    why: &str,
) -> anyhow::Result<Programs> {
    take_back(pins)?;
    let kept = format!(
        "the flow table stays as it is, with room for {} flows instead of {}: {why}",
        present / RECORDS_PER_FLOW,
        wanted.sizes.slots / RECORDS_PER_FLOW,
    );
    tracing::warn!("{kept}");
    Ok(Programs {
        kept: Some(kept),
        ..steady(pins, wanted.with_slots(present))?
    })
}

impl Resize {
    fn new(from: u32, to: u32, second: Option<Loaded>) -> Self {
        Self {
            from,
            to,
            second,
            began: Instant::now(),
        }
    }

    /// Whether the only thing that has happened is that programs know the next tables.
    pub fn is_first(&self) -> bool {
        self.second.is_some()
    }

    /// Records of IPv4's table, now and after the change.
    pub fn records(&self) -> (u32, u32) {
        (self.from, self.to)
    }

    /// The next step, once `attached` are attached everywhere and no others are: programs of the
    /// second kind, or the end of the change.
    ///
    /// # Errors
    ///
    /// If the kernel refuses. The next agent goes on then.
    pub fn go_on(
        mut self,
        attached: &Loaded,
        config: &MappedArray<abi::Config>,
        pins: &Pins,
    ) -> anyhow::Result<Step> {
        // The exchanged programs may still run for a moment.
        synchronize_rcu();
        let stage = config.u32_at(0, offset_of!(abi::Config, resize));
        if let Some(second) = self.second.take() {
            stage.store(resize_stage::BOTH, Ordering::SeqCst);
            return Ok(Step::Attach(Box::new((second, self))));
        }
        let Copies { copied, left } = self.copy(attached)?;
        stage.store(resize_stage::COPIED, Ordering::SeqCst);
        adopt(pins)?;
        Ok(Step::Done(Resized {
            from: self.from / RECORDS_PER_FLOW,
            to: self.to / RECORDS_PER_FLOW,
            copied,
            left,
            took: self.began.elapsed(),
        }))
    }

    /// Copies all flows that have not been copied yet.
    fn copy(&self, programs: &Loaded) -> anyhow::Result<Copies> {
        let mut all = Copies::default();
        for _ in 0..PASSES {
            all.left = 0;
            for (family, records) in [(Family::V4, self.from), (Family::V6, self.from / 2)] {
                for first in (0..records).step_by(COPY_BATCH as usize) {
                    let Copies { copied, left } = copy_batch(programs, first, family)?;
                    all.copied += copied;
                    all.left += left;
                }
            }
            if all.left == 0 {
                break;
            }
        }
        Ok(all)
    }
}

/// The result of [`Resize::go_on`].
pub enum Step {
    /// These programs are to be attached everywhere.
    Attach(Box<(Loaded, Resize)>),
    Done(Resized),
}

#[derive(Default)]
struct Copies {
    copied: u64,
    left: u64,
}

/// Runs the program that copies flows on a batch of records.
fn copy_batch(programs: &Loaded, first: u32, family: Family) -> anyhow::Result<Copies> {
    let mut words = Words::default();
    words[copy_word::FIRST] = first;
    words[copy_word::FAMILY] = family as u32;
    // Any frame will do: the program does not look at it.
    let after = run_classifier(programs.program(COPY_PROGRAM)?, &[0; 64], 0, words);
    let after = after.context("cannot copy flows")?;
    Ok(Copies {
        copied: after[copy_word::COPIED].into(),
        left: after[copy_word::LEFT].into(),
    })
}

/// Makes the next tables, and programs of both kinds.
fn prepare(pins: &Pins, from: u32, to: u32, wanted: Wanted<'_>) -> anyhow::Result<Programs> {
    let [(table4, _), (table6, _)] = TABLES;
    check_room(&flows::<Ip4>(pins, table4)?, to, "IPv4")?;
    check_room(&flows::<Ip6>(pins, table6)?, to / 2, "IPv6")?;
    let second = second(pins, from, to, wanted)?;
    let present = settings(pins, CONFIG)?.read(0);
    settings(pins, CONFIG_NEXT)?.write(
        0,
        &abi::Config {
            flow_mask4: to - 1,
            flow_mask6: to / 2 - 1,
            resize: resize_stage::PREPARED,
            resize_since: present.hop_generation,
            ..present
        },
    );
    let first = first(pins, from, to, wanted)?;
    programs(pins, first, to, Some(Resize::new(from, to, Some(second))))
}

fn flows<A: Address>(pins: &Pins, table: &str) -> anyhow::Result<MappedArray<Flow<A>>>
where
    Flow<A>: aya::Pod,
{
    MappedArray::from_pin(&pins.map(table)).with_context(|| format!("cannot read {table}"))
}

/// Fails if a table's flows would not fit into one of `records` records. Also clears the marks of
/// an earlier change.
fn check_room<A: Address>(
    table: &impl Records<A>,
    records: u32,
    family: &str,
) -> anyhow::Result<()> {
    let mut live = 0;
    for index in 0..table.len() {
        if tag::in_use(table.tag(index).load(Ordering::Relaxed)) {
            live += 1;
            if table.flags(index).load(Ordering::Relaxed) & flow_flag::COPIED != 0 {
                let flags = table.flags(index);
                flags.fetch_and(!flow_flag::COPIED, Ordering::Relaxed);
            }
        }
    }
    let (open, room) = (live / 2, records / RECORDS_PER_FLOW);
    if open > room / FILLED.1 * FILLED.0 {
        bail!(
            "{open} {family} flows are open, and a table for {room} would be too full. Choose a larger \
             --flow-table-size, or start node-lb again when fewer are open"
        );
    }
    Ok(())
}

/// Looks at what an agent left that was stopped in the middle of a change. Returns whether the
/// change goes on; otherwise it has been completed or taken back.
fn recover(pins: &Pins) -> anyhow::Result<bool> {
    if !pins.maps()?.contains(CONFIG_NEXT) {
        take_back(pins)?;
        return Ok(false);
    }
    let next = settings(pins, CONFIG_NEXT)?.read(0);
    match next.resize {
        resize_stage::COPIED => adopt(pins)?,
        // An older version knows only the present tables, so what is in the next ones is out of
        // date.
        resize_stage::BOTH if !was_alone(pins, &next)? => take_back(pins)?,
        resize_stage::BOTH => return Ok(true),
        _ => take_back(pins)?,
    }
    Ok(false)
}

/// Whether no agent that does not know of the change has run since it began.
fn was_alone(pins: &Pins, next: &abi::Config) -> anyhow::Result<bool> {
    Ok(settings(pins, CONFIG)?.read(0).hop_generation == next.resize_since)
}

/// Puts the next tables in the place of the present ones.
fn adopt(pins: &Pins) -> anyhow::Result<()> {
    let next = settings(pins, CONFIG_NEXT)?.read(0);
    // No program with the old tables uses these settings any more.
    settings(pins, CONFIG)?.write(
        0,
        &abi::Config {
            resize: 0,
            resize_since: 0,
            ..next
        },
    );
    for (present, next) in TABLES {
        pins.rename_map(next, present)?;
    }
    // Last, because the next agent repeats these steps as long as it is there.
    pins.remove_map(CONFIG_NEXT)?;
    Ok(())
}

/// Removes the next tables.
fn take_back(pins: &Pins) -> Result<(), PinError> {
    pins.remove_map(CONFIG_NEXT)?;
    for (_, next) in TABLES {
        pins.remove_map(next)?;
    }
    Ok(())
}

fn settings(pins: &Pins, pin: &str) -> anyhow::Result<MappedArray<abi::Config>> {
    MappedArray::from_pin(&pins.map(pin)).with_context(|| format!("cannot read {pin}"))
}

/// Programs for tables that keep their size.
fn steady(pins: &Pins, wanted: Wanted<'_>) -> anyhow::Result<Programs> {
    let Wanted {
        sizes,
        programs: names,
    } = wanted;
    let loaded = load(OBJECT, pins, names, &sizes.settings())?;
    programs(pins, loaded, sizes.slots, None)
}

fn programs(
    pins: &Pins,
    loaded: Loaded,
    slots: u32,
    resize: Option<Resize>,
) -> anyhow::Result<Programs> {
    let pin = match resize {
        Some(_) => CONFIG_NEXT,
        None => CONFIG,
    };
    Ok(Programs {
        loaded,
        slots,
        config: settings(pins, pin)?,
        resize,
        kept: None,
    })
}

/// Programs of the first kind.
fn first(pins: &Pins, from: u32, to: u32, wanted: Wanted<'_>) -> Result<Loaded, LoadError> {
    let others = [to, to / 2];
    let masks = others.map(|records| records - 1);
    let mut settings = wanted.sizes.with_slots(from).settings();
    for (family, (_, next)) in TABLES.into_iter().enumerate() {
        settings = settings
            .pinned_as(OTHER_TABLES[family], next)
            .max_entries(OTHER_TABLES[family], others[family])
            .global(OTHER_MASKS[family], &masks[family]);
    }
    load(OBJECT, pins, wanted.programs, &settings)
}

/// Programs of the second kind.
fn second(pins: &Pins, from: u32, to: u32, wanted: Wanted<'_>) -> Result<Loaded, LoadError> {
    let others = [from, from / 2];
    let masks = others.map(|records| records - 1);
    let mut settings = wanted
        .sizes
        .with_slots(to)
        .settings()
        .pinned_as(CONFIG, CONFIG_NEXT);
    for (family, (present, next)) in TABLES.into_iter().enumerate() {
        settings = settings
            .pinned_as(present, next)
            .pinned_as(OTHER_TABLES[family], present)
            .max_entries(OTHER_TABLES[family], others[family])
            .global(OTHER_MASKS[family], &masks[family]);
    }
    let names = [wanted.programs, &[COPY_PROGRAM]].concat();
    load(OBJECT, pins, &names, &settings)
}

impl std::fmt::Display for Resized {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            from,
            to,
            copied,
            left,
            took,
        } = self;
        let took = took.as_secs_f64();
        write!(
            f,
            "the flow table has room for {to} flows now, after {from}; {copied} flows were moved, in {took:.1} s"
        )?;
        match left {
            0 => Ok(()),
            _ => write!(f, "; {left} found no place and are lost"),
        }
    }
}
