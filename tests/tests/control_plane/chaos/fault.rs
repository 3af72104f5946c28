//! What goes wrong, and how it is mended.

use std::{
    fs::{self, Permissions},
    io::ErrorKind,
    os::unix::fs::PermissionsExt as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use lb_tests::{
    Cluster, Limit, Limited, PATIENCE,
    agent::{NO_FILES, USUAL_FILES},
    balanced,
};
use nix::sys::signal::Signal;

/// Bytes that an agent may have in addition, with [`Fault::NoMemory`]: soon it wants more.
const LITTLE_MEMORY: u64 = 256 << 10;
/// In a hundred of one CPU, with [`Fault::LittleCpu`].
const LITTLE_CPU: u64 = 5;
/// Seconds by which the clocks of [`Fault::OtherClocks`] go ahead of the machine's.
const DAYS: u64 = 10 * 86_400;

/// In the order in which two of them can be mended, and begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    EtcdKilled,
    ApiServerKilled,
    ConnectionsRefused,
    /// The agents' pins are removed.
    NoPins,
    LittleCpu,
    /// Who asks for memory is killed.
    NoMemory,
    AgentsStopped,
    /// No new descriptors (EMFILE).
    NoFiles,
    AgentsKilled,
    /// Agents are killed, and started where the monotonic clock shows another time. (The clock of
    /// the date is the machine's: no process can have another one.)
    OtherClocks,
}

impl Fault {
    const ALL: [Self; 10] = [
        Self::ApiServerKilled,
        Self::EtcdKilled,
        Self::ConnectionsRefused,
        Self::AgentsStopped,
        Self::AgentsKilled,
        Self::NoFiles,
        Self::NoPins,
        Self::LittleCpu,
        Self::NoMemory,
        Self::OtherClocks,
    ];

    /// Faults that are to be there together: one or two.
    pub fn draw(rng: &mut Rng) -> Vec<Self> {
        let mut faults = Self::ALL.to_vec();
        rng.shuffle(&mut faults);
        faults.truncate(rng.usize(1..=2));
        faults.sort();
        let ends = faults.iter().filter(|fault| fault.ends_agents()).count();
        // Programs that nobody has pinned end with the agent: nobody can promise anything else. And
        // agents do not end twice.
        if ends == 2 || ends == 1 && faults.contains(&Self::NoPins) {
            faults.truncate(1);
        }
        faults
    }

    /// Whether agents end, so that others have to start.
    pub fn ends_agents(self) -> bool {
        matches!(
            self,
            Self::NoMemory | Self::AgentsKilled | Self::OtherClocks
        )
    }

    fn begin(self, cluster: &mut Cluster) -> Result<Vec<Limited>> {
        match self {
            Self::ApiServerKilled => cluster.control_plane.kill_api()?,
            Self::EtcdKilled => cluster.control_plane.kill_etcd()?,
            Self::ConnectionsRefused => cluster.front.close(),
            Self::AgentsStopped => signal(cluster, Signal::SIGSTOP)?,
            Self::AgentsKilled | Self::OtherClocks => cluster.ground.kill_agents()?,
            Self::NoFiles => limit_files(cluster, NO_FILES)?,
            Self::NoPins => remove_pins(cluster)?,
            Self::LittleCpu => return limit(cluster, Limit::Cpu(LITTLE_CPU)),
            Self::NoMemory => return limit(cluster, Limit::Memory(LITTLE_MEMORY)),
        }
        Ok(Vec::new())
    }

    fn mend(self, cluster: &mut Cluster) -> Result<()> {
        match self {
            Self::ApiServerKilled => cluster.control_plane.start_api(),
            Self::EtcdKilled => cluster.control_plane.start_etcd(),
            Self::ConnectionsRefused => cluster.front.open(),
            Self::AgentsStopped => signal(cluster, Signal::SIGCONT),
            // Ready or not: that is what is measured.
            Self::AgentsKilled => cluster.ground.launch_agents(),
            Self::OtherClocks => launch_in_other_time(cluster),
            Self::NoFiles => limit_files(cluster, USUAL_FILES),
            Self::NoMemory => {
                // Who is being killed has not ended yet.
                thread::sleep(Duration::from_millis(200));
                cluster.ground.relaunch_ended()
            }
            // The agents do that.
            Self::NoPins => Ok(()),
            // Its limits are lifted.
            Self::LittleCpu => Ok(()),
        }
    }
}

/// Faults that are there.
pub struct Faults {
    faults: Vec<Fault>,
    limits: Vec<Limited>,
}

impl Faults {
    /// Has them begin.
    pub fn begin(faults: &[Fault], cluster: &mut Cluster) -> Result<Self> {
        let mut limits = Vec::new();
        for fault in faults {
            limits.extend(fault.begin(cluster)?);
        }
        Ok(Self {
            faults: faults.to_vec(),
            limits,
        })
    }

    /// Ends them.
    pub fn mend(self, cluster: &mut Cluster) -> Result<()> {
        drop(self.limits);
        self.faults.iter().try_for_each(|fault| fault.mend(cluster))
    }
}

fn signal(cluster: &Cluster, signal: Signal) -> Result<()> {
    let mut agents = cluster.ground.agents.iter();
    agents.try_for_each(|agent| agent.signal(signal))
}

fn limit(cluster: &Cluster, limit: Limit) -> Result<Vec<Limited>> {
    let (lab, agents) = (cluster.lab().id(), &cluster.ground.agents);
    let limits = agents
        .iter()
        .map(|agent| limit.set(lab, agent.node().name(), agent.pid()));
    limits.collect()
}

fn limit_files(cluster: &Cluster, limit: u32) -> Result<()> {
    let mut agents = cluster.ground.agents.iter();
    agents.try_for_each(|agent| agent.limit_files(limit))
}

fn remove_pins(cluster: &Cluster) -> Result<()> {
    for node in cluster.lab().nodes() {
        let start = Instant::now();
        // An agent may be pinning again already.
        while let Err(error) = fs::remove_dir_all(&node.pin_root) {
            if error.kind() == ErrorKind::NotFound {
                break;
            }
            ensure!(start.elapsed() < PATIENCE, "cannot remove pins: {error}");
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// Starts agents in a time namespace: for them, the machine has been up for some days more.
fn launch_in_other_time(cluster: &mut Cluster) -> Result<()> {
    let program = balanced::node_lb()?;
    let script = cluster.lab().node(1).dir.join("in-other-time");
    let text = format!(
        "#!/bin/sh\nexec unshare --time --monotonic {DAYS} --boottime {DAYS} {} \"$@\"\n",
        program.display()
    );
    fs::write(&script, text).context("cannot write a script")?;
    fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    cluster.ground.launch_agents_of(&script)
}
