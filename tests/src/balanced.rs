//! A lab with node-lb on its nodes.

use std::{
    env, fs, iter, mem,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use aya::maps::{Map, MapData, PerCpuArray};
use lb_common::verdict::{Hook, Reason};
use lb_objects::{Problem, Protocol};
use node_lb::{
    agent::status::Status,
    flows::FlowReport,
    plan::{LocalNode, Plan, PlanOptions, plan},
    source::{Event, dir},
    store::Store,
};

use crate::{
    Agent, AgentSpec, Family, Host, Lab, MapContents, Node, Readiness, Topology, agent,
    lab::LabId,
    patience::{PATIENCE, try_eventually},
};

/// The networks of all pods of a lab.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:10:244::/48";

/// A lab with an agent on each node.
#[derive(Debug)]
pub struct Balanced {
    // Dropped first: agents before the ground they stand on.
    pub agents: Vec<Agent>,
    pub lab: Lab,
    source: AgentSource,
    arguments: Vec<String>,
}

/// Where the agents of a lab get their objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentSource {
    /// The manifests that the lab writes for each node.
    Manifests,
    /// The API server that a kubeconfig names.
    ApiServer { kubeconfig: PathBuf },
}

impl Balanced {
    /// Builds a lab and starts agents with XDP in the driver.
    pub fn up(topology: Topology) -> Result<Self> {
        Self::with(topology, &["--xdp-mode=native"])
    }

    /// Builds a lab and starts agents with more arguments.
    pub fn with(topology: Topology, arguments: &[&str]) -> Result<Self> {
        Self::in_lab(Lab::up(topology)?, arguments)
    }

    /// Starts agents in a lab that is up.
    pub fn in_lab(lab: Lab, arguments: &[&str]) -> Result<Self> {
        Self::following(lab, AgentSource::Manifests, arguments)
    }

    /// Starts agents in a lab that is up, with their objects from `source`.
    pub fn following(lab: Lab, source: AgentSource, arguments: &[&str]) -> Result<Self> {
        let mut balanced = Self::without_agents(lab, source, arguments);
        balanced.start_agents()?;
        Ok(balanced)
    }

    /// The same with agents still to be started: [`Balanced::start_agents`].
    pub fn without_agents(lab: Lab, source: AgentSource, arguments: &[&str]) -> Self {
        let mut balanced = Self {
            agents: Vec::new(),
            lab,
            source,
            arguments: Vec::new(),
        };
        balanced.set_arguments(arguments);
        balanced
    }

    /// Starts an agent on each node, when [`Balanced::agents`] is empty.
    pub fn start_agents(&mut self) -> Result<()> {
        self.start_agents_of(&node_lb()?)
    }

    /// Sets other arguments for agents that are started from now on.
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
    }

    /// Starts agents of a build of node-lb.
    pub fn start_agents_of(&mut self, program: &Path) -> Result<()> {
        self.launch_agents_of(program)?;
        self.wait_until_ready()
    }

    /// Waits until all agents are ready.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.agents.iter_mut().try_for_each(Agent::wait_until_ready)
    }

    /// Like [`Balanced::start_agents`], but does not wait until they are ready.
    pub fn launch_agents(&mut self) -> Result<()> {
        self.launch_agents_of(&node_lb()?)
    }

    /// Like [`Balanced::start_agents_of`], but does not wait until they are ready.
    pub fn launch_agents_of(&mut self, program: &Path) -> Result<()> {
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        let launch = |node: &Node| {
            let spec = spec_of(node, &self.source, &arguments)?.program(program);
            Agent::launch(node, spec)
        };
        self.agents = self.lab.nodes().iter().map(launch).collect::<Result<_>>()?;
        Ok(())
    }

    /// Starts those agents again that have ended, without waiting until they are ready.
    pub fn relaunch_ended(&mut self) -> Result<()> {
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        for agent in &mut self.agents {
            if agent.check().is_err() {
                let node = agent.node().clone();
                *agent = Agent::launch(&node, spec_of(&node, &self.source, &arguments)?)?;
            }
        }
        Ok(())
    }

    /// Kills all agents with SIGKILL; what they put into the kernel stays.
    pub fn kill_agents(&mut self) -> Result<()> {
        mem::take(&mut self.agents)
            .into_iter()
            .try_for_each(Agent::kill)
    }

    /// Tells all agents to end, and checks that they do so properly.
    pub fn stop_agents(&mut self) -> Result<()> {
        for agent in mem::take(&mut self.agents) {
            let status = agent.stop(PATIENCE)?;
            ensure!(status.success(), "an agent ended with {status}");
        }
        Ok(())
    }

    /// Makes a change to manifests, and waits until every running agent has it in the maps: each
    /// has written something, and everything that the planner wants with default settings is there.
    ///
    /// The planner cannot say what a broken manifest means. As long as there is one, this is
    /// [`Balanced::change_something`].
    pub fn change(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        self.change_something(change)?;
        for agent in &self.agents {
            let node = agent.node();
            let is_written = || {
                let (plans, problems) = self.plans_and_problems(node)?;
                match problems.is_empty() {
                    true => self.map_contents(node)?.check_for(&plans),
                    false => Ok(()),
                }
            };
            try_eventually(is_written)
                .with_context(|| format!("the maps of {} lack a change", node.name()))?;
        }
        Ok(())
    }

    /// Makes a change and waits until every running agent has written something.
    pub fn change_something(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.syncs()?;
        change()?;
        try_eventually(|| {
            let mut syncs = before.iter().zip(self.syncs()?);
            let all = syncs.all(|(before, now)| now > *before);
            ensure!(all, "not every agent has written something since a change");
            Ok(())
        })
    }

    /// The value of a metric of the agent on node number `index`: of one `name{labels}`, or summed
    /// up over all labels of `name`.
    pub fn metric(&self, index: usize, name: &str) -> Result<f64> {
        metric(self.lab.node(index), name)
    }

    /// The answer of `node-lb status` for the agent on node number `index`.
    pub fn status(&self, index: usize) -> Result<Status> {
        let (_, text) = self.status_as(index, "json")?;
        serde_json::from_str(&text).context("this is not a status")
    }

    /// What `node-lb status` prints in this form for the agent on node number `index`, and whether it
    /// finds that something needs attention.
    pub fn status_as(&self, index: usize, form: &str) -> Result<(bool, String)> {
        let node = self.lab.node(index);
        let mut command = node.command(node_lb()?)?;
        command.args(["status", "--output", form, "--socket"]);
        answer(command.arg(socket(node)))
    }

    /// What `node-lb verify` prints with the flags of the agent on node number `index`, and whether
    /// it finds that something differs.
    pub fn verify(&self, index: usize) -> Result<(bool, String)> {
        let node = self.lab.node(index);
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        let mut command = node.command(node_lb()?)?;
        command.arg("verify");
        answer(command.args(flags(node, &self.source, &arguments)))
    }

    /// What `node-lb explain -o json` prints with the flags of the agent on node number `index` and these
    /// arguments.
    pub fn explain(&self, index: usize, arguments: &[&str]) -> Result<String> {
        let node = self.lab.node(index);
        let own: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        let mut command = node.command(node_lb()?)?;
        command.args(["explain", "--output=json"]).args(arguments);
        let (_, text) = answer(command.args(flags(node, &self.source, &own)))?;
        Ok(text)
    }

    /// `node-lb trace` on node number `index`, with these arguments; its output is for the caller.
    pub fn trace(&self, index: usize, arguments: &[&str]) -> Result<Child> {
        let node = self.lab.node(index);
        let mut command = node.command(node_lb()?)?;
        command
            .arg("trace")
            .arg("--socket")
            .arg(socket(node))
            .args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        command.spawn().context("`node-lb trace` does not start")
    }

    /// Whether packets are traced on node number `index`.
    pub fn is_tracing(&self, index: usize) -> Result<bool> {
        let trace = self.status(index)?.trace;
        Ok(trace.is_some_and(|trace| trace.starts_with("runs")))
    }

    /// What `node-lb admission levels` shows on a node.
    pub fn levels(&self, index: usize) -> Result<String> {
        self.admission(index, "levels")
    }

    /// What `node-lb admission connections` shows on a node.
    pub fn connections(&self, index: usize) -> Result<String> {
        self.admission(index, "connections")
    }

    fn admission(&self, index: usize, what: &str) -> Result<String> {
        let node = self.lab.node(index);
        let program = node_lb()?.display().to_string();
        let socket = socket(node).display().to_string();
        node.run(&format!("{program} admission {what} --socket {socket}"))
    }

    /// Waits until no UDP flow leads to any of `hosts` any more on nodes with running agents.
    pub fn wait_until_datagrams_leave(&self, hosts: &[&Host]) -> Result<()> {
        let leads_there = |flow: &FlowReport| {
            let ip = flow.endpoint.ip();
            flow.transport == Protocol::Udp
                && hosts.iter().any(|host| host.ip(Family::of(ip)) == ip)
        };
        try_eventually(|| {
            self.agents.iter().map(Agent::node).try_for_each(|node| {
                let flows = self.map_contents(node)?.flows()?;
                let left = flows.iter().find(|flow| leads_there(flow));
                ensure!(left.is_none(), "{} has {left:?}", node.name());
                Ok(())
            })
        })
    }

    /// The flows of node number `index`, whether or not its agent runs.
    pub fn flows(&self, index: usize) -> Result<Vec<FlowReport>> {
        self.map_contents(self.lab.node(index))?.flows()
    }

    /// The flow of a TCP connection on node number `index`. A client's port alone does not say
    /// which: it serves several connections at once, to other addresses or over UDP.
    pub fn flow_of(
        &self,
        index: usize,
        client: SocketAddr,
        frontend: SocketAddr,
    ) -> Result<Option<FlowReport>> {
        let mut flows = self.flows(index)?.into_iter();
        Ok(flows.find(|flow| {
            flow.protocol == "TCP" && (flow.client, flow.frontend) == (client, frontend)
        }))
    }

    /// Number of packets that were counted for a reason on node number `index`, at all hooks and on
    /// all CPUs.
    pub fn packets(&self, index: usize, reason: Reason) -> Result<u64> {
        let path = self.map_dir(index)?.join("PACKETS");
        let map = Map::PerCpuArray(MapData::from_pin(path)?);
        let counters: PerCpuArray<_, u64> = map.try_into()?;
        let mut packets = 0;
        for hook in Hook::ALL {
            let of_cpus = counters.get(&hook.counter(reason), 0)?;
            packets += of_cpus.iter().sum::<u64>();
        }
        Ok(packets)
    }

    fn map_contents(&self, node: &Node) -> Result<MapContents> {
        MapContents::open(&self.map_dir(node.index.into())?)
    }

    /// Where the agent on node number `index` pins its maps.
    pub fn map_dir(&self, index: usize) -> Result<PathBuf> {
        let root = &self.lab.node(index).pin_root;
        let entries =
            fs::read_dir(root).with_context(|| format!("no pins at {}", root.display()))?;
        let mut versions = entries.flatten().map(|entry| entry.path().join("maps"));
        versions
            .find(|path| path.is_dir())
            .with_context(|| format!("no maps below {}", root.display()))
    }

    /// The plans that follow from the manifests on node number `index`, by the planner alone and
    /// with default settings.
    ///
    /// # Errors
    /// If they cannot be read, or one is broken.
    pub fn plans(&self, index: usize) -> Result<Vec<Plan>> {
        let (plans, problems) = self.plans_and_problems(self.lab.node(index))?;
        ensure!(problems.is_empty(), "{problems:?}");
        Ok(plans)
    }

    fn plans_and_problems(&self, node: &Node) -> Result<(Vec<Plan>, Vec<Problem>)> {
        let (objects, problems) = dir::load(node.manifests())?;
        let mut store = Store::new(node.name());
        store.apply(objects.into_iter().map(Event::Apply));
        let local = store.node().context("no Node object")?;
        let local = LocalNode::new(local, &local.addresses, &PlanOptions::default());
        let plans = store.services().flat_map(|service| {
            let slices: Vec<_> = store.slices(&service.name).collect();
            plan(service, &slices, &local).ports
        });
        Ok((plans.collect(), problems))
    }

    /// Leaves lab and agents on the machine until `lab down` removes them.
    pub fn keep(self) -> Result<LabId> {
        let id = self.lab.keep()?;
        self.agents.into_iter().for_each(Agent::leave_running);
        Ok(id)
    }

    /// How often each running agent has written changes.
    fn syncs(&self) -> Result<Vec<f64>> {
        // An agent that is just ready opens the port for metrics last.
        try_eventually(|| {
            let nodes = self.agents.iter().map(Agent::node);
            nodes
                .map(|node| metric(node, "kubeproxy_sync_proxy_rules_duration_seconds_count"))
                .collect()
        })
    }
}

fn metric(node: &Node, name: &str) -> Result<f64> {
    let text = agent::metrics(node)?;
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once("} ")?.1,
            None => rest.strip_prefix(' ')?,
        };
        value.parse::<f64>().ok()
    });
    values
        .reduce(|sum, value| sum + value)
        .with_context(|| format!("the agent on {} has no metric {name}", node.name()))
}

/// What a command prints that ends with 0 if all is well, and whether it has ended with 3 instead.
fn answer(command: &mut Command) -> Result<(bool, String)> {
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    match output.status.code() {
        Some(0) => Ok((false, text)),
        Some(3) => Ok((true, text)),
        _ => bail!("{}", String::from_utf8_lossy(&output.stderr).trim_end()),
    }
}

/// How to run node-lb on a node of a lab, with its objects from the lab's manifests.
pub fn spec(node: &Node, arguments: &[&str]) -> Result<AgentSpec> {
    spec_of(node, &AgentSource::Manifests, arguments)
}

/// How to run node-lb on a node of a lab.
pub fn spec_of(node: &Node, source: &AgentSource, arguments: &[&str]) -> Result<AgentSpec> {
    let ready = Readiness::Http {
        address: health_address(arguments)?,
        path: "/healthz".to_owned(),
    };
    let arguments = iter::once("agent".to_owned()).chain(flags(node, source, arguments));
    Ok(AgentSpec::new(node_lb()?, arguments, ready))
}

/// The flags of an agent on a node of a lab, `arguments` among them.
fn flags(node: &Node, source: &AgentSource, arguments: &[&str]) -> Vec<String> {
    let source = match source {
        AgentSource::Manifests => format!("--source=dir:{}", node.manifests().display()),
        AgentSource::ApiServer { kubeconfig } => format!("--kubeconfig={}", kubeconfig.display()),
    };
    let cgroup = node.cgroup_root.display().to_string();
    let pins = node.pin_root.display().to_string();
    let socket = socket(node).display().to_string();
    let named = arguments.iter().any(|one| one.starts_with("--node="));
    let name = format!("--node={}", node.name());
    let own = [
        &source,
        "--cgroup-path",
        &cgroup,
        "--bpf-root",
        &pins,
        "--socket",
        &socket,
        "--cluster-cidr",
        CLUSTER_CIDR,
    ];
    let flags = own.iter().chain(small_tables(arguments)).chain(arguments);
    let name = (!named).then_some(name);
    name.into_iter()
        .chain(flags.map(ToString::to_string))
        .collect()
}

/// Where an agent with these arguments answers probes of its own node.
fn health_address(arguments: &[&str]) -> Result<SocketAddr> {
    let flag = "--healthz-bind-address=";
    let mut chosen = arguments.iter().filter_map(|one| one.strip_prefix(flag));
    let port = match chosen.next() {
        Some(address) => address.parse::<SocketAddr>()?.port(),
        None => 10256,
    };
    Ok(SocketAddr::from(([127, 0, 0, 1], port)))
}

/// An agent that is hardly optimized takes long to go through flow tables of the usual size, and a
/// machine runs a dozen.
fn small_tables(arguments: &[&str]) -> &'static [&'static str] {
    let own_size = |argument: &&str| argument.starts_with("--flow-table-size");
    match cfg!(debug_assertions) && !arguments.iter().any(own_size) {
        true => &["--flow-table-size=65536"],
        false => &[],
    }
}

/// Runs `node-lb cleanup` on a node whose agent has ended.
///
/// # Errors
/// If it fails.
pub fn clean_up(node: &Node) -> Result<()> {
    let (program, root) = (node_lb()?, node.pin_root.display());
    let line = format!("{} cleanup --bpf-root {root}", program.display());
    node.run(&line).map(drop)
}

/// Where the agent on a node listens for commands.
pub fn socket(node: &Node) -> PathBuf {
    node.dir.join("agent.sock")
}

/// Where an older version of node-lb is, which `cargo xtask test` builds: `$NODE_LB_OLDER`, or else
/// `older/node-lb` in the build directory.
pub fn older_node_lb() -> Result<PathBuf> {
    if let Some(path) = env::var_os("NODE_LB_OLDER") {
        return Ok(path.into());
    }
    let program = env::current_exe().context("cannot tell which program this is")?;
    let mut found = program.ancestors().map(|dir| dir.join("older/node-lb"));
    found
        .find(|path| path.is_file())
        .context("there is no older node-lb: run `cargo xtask test kernel`, or set NODE_LB_OLDER")
}

/// Where `node-lb` is: `$NODE_LB`, else beside the running program or one directory above it.
pub fn node_lb() -> Result<PathBuf> {
    if let Some(path) = env::var_os("NODE_LB") {
        return Ok(path.into());
    }
    let program = env::current_exe().context("cannot tell which program this is")?;
    let found = program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("node-lb"));
    found
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "node-lb is not beside {}: build it or set NODE_LB",
                program.display()
            )
        })
}
