//! `node-lb admission record`: the connections of this node, as a trace for `simulate` and
//! `suggest`.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use clap::Args;
use lb_admission::{schema::Ingress, simulate::recording::Recorded};
use lb_common::{
    abi,
    addr::{Address, Ip4, Ip6},
    flow::Flow,
};
use lb_datapath::{Jiffies, TickRate, bpf::MappedArray};
use lb_objects::Protocol;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use self::{
    origins::Origins,
    services::{Port, Services},
};
use crate::{
    cli::{block_on, bpf_root::BpfRoot, flows::pinned, local_api::LocalApi, print, print_error},
    flows::{Arrivals, arrivals::Past},
};

mod origins;
mod services;

/// So many bytes are printed at a time.
const CHUNK: usize = 1 << 16;
/// How often the flow tables are looked at: what is shorter is not seen in the order of arrivals.
const INTERVAL: Duration = Duration::from_millis(250);

/// Record the connections to Services on this node, for simulate and suggest
///
/// Looks at the kernel's flow tables four times a second, and asks the agent what the Services are.
/// At the end, or when it is interrupted, prints a line of JSON for each connection. Those that are
/// still open then count as ending then, and those that were there before as beginning with the
/// recording.
#[derive(Args, Debug)]
pub struct Command {
    /// How long to record
    #[arg(
        long = "for",
        value_name = "DURATION",
        default_value = "10m",
        value_parser = humantime::parse_duration
    )]
    duration: Duration,

    /// Number of connections after which the recording ends
    #[arg(
        long,
        value_name = "CONNECTIONS",
        default_value_t = 500_000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    limit: u64,

    #[command(flatten)]
    agent: LocalApi,

    #[command(flatten)]
    bpf_root: BpfRoot,
}

impl Command {
    /// # Errors
    /// If the flow tables cannot be read, or no agent answers.
    pub fn run(self) -> anyhow::Result<()> {
        let services = Services::follow(self.agent)?;
        let began = humantime::format_rfc3339_seconds(SystemTime::now());
        let record = async {
            let mut recording = Recording::begin(&self.bpf_root.path, services)?;
            print_error("recording; an interrupt (Ctrl-C) ends it early\n");
            recording.run(self.duration, self.limit).await?;
            recording.end().await
        };
        let (recorded, took, unknown) = block_on(record)??;
        if unknown != 0 {
            print_error(&format!(
                "warning: {unknown} connections are left out, because the agent knew no Service at their \
                 addresses\n"
            ));
        }
        print(&format!(
            "# node-lb admission record: {} connections in {:.1} s from {began}\n",
            recorded.len(),
            took.as_secs_f64()
        ))?;
        let mut text = String::new();
        for one in recorded {
            text += &serde_json::to_string(&one.recorded()).context("cannot write JSON")?;
            text.push('\n');
            if text.len() > CHUNK {
                print(&text)?;
                text.clear();
            }
        }
        print(&text)
    }
}

/// A connection that is over, in little memory: there may be very many, and whoever runs this in the
/// agent's pod takes it from there.
struct Ended {
    /// Nanoseconds since the recording began.
    opened: u64,
    /// Nanoseconds.
    held: u64,
    source: IpAddr,
    address: IpAddr,
    port: Arc<Port>,
    protocol: Protocol,
    ingress: Ingress,
}

impl Ended {
    fn recorded(&self) -> Recorded {
        Recorded {
            t_ns: self.opened,
            hold_ns: self.held,
            source: self.source,
            ingress: self.ingress,
            namespace: self.port.namespace.clone(),
            service: self.port.service.clone(),
            port: self.port.port,
            protocol: self.protocol,
            address: self.address,
        }
    }
}

/// A recording under way.
struct Recording {
    /// Where the maps are pinned.
    root: PathBuf,
    v4: Watched<Ip4>,
    v6: Watched<Ip6>,
    rate: TickRate,
    jiffies: Jiffies,
    origins: Origins,
    services: Services,
    began: Instant,
    recorded: Vec<Ended>,
    /// Connections to addresses of no known Service.
    unknown: u64,
}

/// A flow table, and what has been seen there.
struct Watched<A> {
    map: &'static str,
    records: MappedArray<Flow<A>>,
    arrivals: Arrivals<A>,
}

impl<A: Address> Watched<A>
where
    Flow<A>: aya::Pod,
{
    fn open(root: &Path, map: &'static str, rate: TickRate) -> anyhow::Result<Self> {
        let records = pinned::<Flow<A>>(root, map)?;
        let arrivals = Arrivals::new(&records, rate);
        Ok(Self {
            map,
            records,
            arrivals,
        })
    }

    /// Whether a table of another size has come in its place.
    fn is_replaced(&self, root: &Path) -> anyhow::Result<bool> {
        let present = pinned::<Flow<A>>(root, self.map)?;
        Ok(present.len() != self.records.len())
    }
}

impl Recording {
    fn begin(root: &Path, services: Services) -> anyhow::Result<Self> {
        let settings = pinned::<abi::Config>(root, "CONFIG")?.read(0);
        let rate = TickRate::of(&settings).context("the data plane has no settings yet")?;
        Ok(Self {
            root: root.to_owned(),
            v4: Watched::open(root, "FLOWS4", rate)?,
            v6: Watched::open(root, "FLOWS6", rate)?,
            rate,
            jiffies: Jiffies::open().context("cannot read the kernel's clock")?,
            origins: Origins::new(root, settings)?,
            services,
            began: Instant::now(),
            recorded: Vec::new(),
            unknown: 0,
        })
    }

    /// Records until the time is over, there are so many connections, or somebody interrupts it.
    async fn run(&mut self, duration: Duration, limit: u64) -> anyhow::Result<()> {
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        let mut looks = interval(INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = self.began + duration;
        while Instant::now() < end && (self.recorded.len() as u64) < limit {
            tokio::select! {
                _ = looks.tick() => self.look().await?,
                _ = interrupted.recv() => break,
                _ = terminated.recv() => break,
            }
        }
        Ok(())
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        let (now, tick) = (self.began.elapsed(), self.tick()?);
        let mut past = Vec::new();
        let Self { v4, v6, .. } = self;
        v4.arrivals
            .look(&v4.records, now, tick, |one| past.push(one));
        v6.arrivals
            .look(&v6.records, now, tick, |one| past.push(one));
        self.add(past).await
    }

    /// Everything recorded, in order of time; how long that took; and how many connections went to
    /// addresses of no known Service.
    async fn end(mut self) -> anyhow::Result<(Vec<Ended>, Duration, u64)> {
        self.look().await?;
        let now = self.began.elapsed();
        let v4 = self.v4.arrivals.end(now);
        let open: Vec<_> = v4.chain(self.v6.arrivals.end(now)).collect();
        self.add(open).await?;
        self.recorded.sort_by_key(|ended| ended.opened);
        if self.v4.is_replaced(&self.root)? || self.v6.is_replaced(&self.root)? {
            print_error(
                "warning: the agent has changed the size of the flow tables meanwhile: connections \
                 that were opened since then are missing\n",
            );
        }
        Ok((self.recorded, now, self.unknown))
    }

    fn tick(&self) -> anyhow::Result<u32> {
        let jiffies = self.jiffies.now();
        Ok(self
            .rate
            .tick(jiffies.context("cannot read the kernel's clock")?))
    }

    async fn add(&mut self, past: Vec<Past>) -> anyhow::Result<()> {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.origins.renew();
        for one in past {
            let Some(port) = self.services.at(one.frontend, one.protocol) else {
                self.unknown += 1;
                continue;
            };
            let source = one.client.ip();
            self.recorded.push(Ended {
                opened: nanoseconds(one.opened),
                held: nanoseconds(one.ended - one.opened),
                source,
                address: one.frontend.ip(),
                port,
                protocol: one.protocol,
                ingress: self.origins.of(source).await?,
            });
        }
        Ok(())
    }
}
