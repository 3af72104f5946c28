//! A reader of the documentation: a cluster, and the files that the examples are about.

use std::{
    env,
    fs::{self, File},
    net::IpAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command as Process,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lb_tests::{
    Cluster, Family, Load, Request, Serve, Topology,
    balanced::{self, node_lb},
    control_plane::ClusterSpec,
    traffic::{RunningLoad, RunningServer},
};
use xtask::{
    docs::{self, Command, Page},
    ebpf::Places,
};

use super::stays;

/// What stands for a reader's own values, and what the lab has.
const VALUES: [(&str, &str); 8] = [
    ("dir:…", "dir:/etc/node-lb/manifests"),
    (
        "--kubeconfig … --node NAME …",
        "--kubeconfig ~/.kube/config --node NAME --from 10.0.0.9 --to 10.96.0.10:80",
    ),
    (" …", " --kubeconfig /etc/node-lb/kubeconfig"),
    ("--node NAME", "--node node-1"),
    ("--node NODE", "--node node-1"),
    ("worker-1", "node-1"),
    ("worker-3", "node-1"),
    // A thousandth of ten million connections.
    (
        "\"duration_ns\": 100000000000",
        "\"duration_ns\": 100000000",
    ),
];
/// How long a command runs that goes on by itself, and how long another one may take, in seconds.
const WHILE: u32 = 3;
const AT_MOST: u32 = 120;
/// How much longer, in seconds, until one that does not end when it is told to is killed, and then its block. An agent
/// that is starting first has its programs loaded.
const GRACE: u32 = 60;
/// Part of commands that change an object that is in the manifest as well.
const CHANGES: &str = "kubectl annotate ";
/// What `timeout` ends with if what it ran had to be killed.
const KILLED: i32 = 137;
/// Objects with the errors that the page about them shows.
const BAD: &str = "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: shop}
spec:
  type: Limited
  limited: {limitResponse: {type: Queue, queuing: {queues: 512, handSize: 8}}}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: shop}
spec:
  matchingPrecedence: 1
  priorityLevelConfiguration: {name: shop}
  rules:
    - subjects: [{kind: Any}]
      destinations: [{namespaces: [shop]}]
";

/// How a command has ended.
pub struct Ending {
    pub status: i32,
    pub printed: String,
}

/// A reader of the documentation: a cluster, and files.
pub struct Reader {
    // Dropped first.
    _traffic: (RunningLoad, RunningServer),
    cluster: Cluster,
    /// Where the files are.
    files: PathBuf,
    scripts: usize,
}

impl Reader {
    /// A cluster of two nodes, of which the second has no agent any more, and the Service of the examples.
    pub fn up() -> Result<Self> {
        let arguments = ["--admission=enforce", "--max-connections=6000"];
        let mut cluster = Cluster::without_agents(ClusterSpec {
            topology: Topology {
                pods_per_node: 2,
                ..Topology::default()
            },
            arguments: arguments.map(str::to_owned).into(),
            ..ClusterSpec::default()
        })?;
        let files = cluster.lab().id().dir().join("reader");
        make_files(&cluster, &files)?;
        let crds = format!("--kustomize={}", docs::root().join("deploy/crds").display());
        cluster.control_plane.kubectl(&["apply", &crds])?;
        cluster.ground.start_agents()?;
        let without = cluster.ground.agents.pop().context("no second agent")?;
        without.stop(Duration::from_secs(30))?;
        balanced::clean_up(cluster.lab().node(2))?;

        let (server, client) = (cluster.lab().pod("pod-1-1"), cluster.lab().pod("pod-1-2"));
        let running = Serve::new(server.name()).tcp(9090).start(server)?;
        let (addresses, client) = (
            [server, client].map(|pod| pod.ip(Family::V4)),
            client.clone(),
        );
        make_objects(&mut cluster, &files, addresses)?;
        let load = Load::new(Request::tcp("10.96.0.10:80".parse()?));
        let load = load.pause(Duration::from_millis(20)).start(&client)?;
        Ok(Self {
            _traffic: (load, running),
            cluster,
            files,
            scripts: 0,
        })
    }

    /// Runs the commands of a block, one after the other, and returns how each has ended.
    pub fn run(&mut self, script: &[Command]) -> Result<Vec<Ending>> {
        self.scripts += 1;
        let place = self.files.join(format!("script-{}", self.scripts));
        let here = make_place(&self.files, &place)?;
        let ending = |number: usize| place.join(format!("ending-{number}"));
        let mut text = "set -o pipefail\n".to_owned();
        let mut patience = GRACE;
        for (number, command) in script.iter().enumerate() {
            let mut typed = command.text.clone();
            for (value, own) in VALUES {
                typed = typed.replace(value, own);
            }
            let seconds = if stays(&command.text) { WHILE } else { AT_MOST };
            patience += seconds + 2 * GRACE;
            let ending = ending(number);
            let ending = ending.display();
            text += &format!(
                "export LIMIT='--kill-after={GRACE} {seconds}'\n{{ {typed}\n}} >{ending} 2>&1 </dev/null\n\
                 echo $? >{ending}.status\n"
            );
        }
        let (typed, said) = (place.join("typed"), place.join("said"));
        fs::write(&typed, text)?;
        // In a file: what a command may leave behind would keep a pipe open.
        let mut bash = self.command(&here, patience)?;
        bash.arg("bash").arg(&typed).stderr(File::create(&said)?);
        bash.status()?;
        let said = fs::read_to_string(&said)?;
        if script.iter().any(|command| command.text.contains(CHANGES)) {
            write_manifest(&self.cluster, &self.files)?;
        }
        let endings = (0..script.len()).map(|number| {
            let path = ending(number);
            let printed = fs::read(&path);
            let printed = printed.with_context(|| format!("{script:?} was not run: {said}"))?;
            let status = fs::read_to_string(path.with_extension("status"));
            Ok(Ending {
                status: status.map_or(Ok(KILLED), |status| status.trim().parse())?,
                printed: String::from_utf8_lossy(&printed).into_owned(),
            })
        });
        endings.collect()
    }

    /// What runs its arguments on node 1, in a directory, for so many seconds at most.
    fn command(&self, here: &Path, seconds: u32) -> Result<Process> {
        let lab = self.cluster.lab();
        let (node, other) = (lab.node(1), lab.node(2));
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/control_plane/documented");
        let plugin = docs::root().join("deploy/kubectl");
        let path = env::var("PATH")?;
        let path = format!("{}/bin:{}:{path}", programs.display(), plugin.display());
        let mut command = node.command("timeout")?;
        command
            .arg(format!("--kill-after={GRACE}"))
            .arg(seconds.to_string())
            .args(["unshare", "--mount", "--uts"])
            .arg(programs.join("enter"));
        command
            .current_dir(here)
            .env("PATH", path)
            .env("TERM", "xterm");
        command
            .env("HOME", self.files.join("home"))
            .env_remove("KUBECONFIG");
        command.env("NODE", node.name()).env("PINS", &node.pin_root);
        command
            .env("CGROUP", &node.cgroup_root)
            .env("OTHER", &other.cgroup_root);
        command
            .env("OTHER_NODE", other.name())
            .env("OTHER_NETNS", other.netns().name());
        command.env("FILES", &self.files).env("PROGRAMS", &programs);
        command
            .env("NODE_LB", node_lb()?)
            .env("AGENT", self.cluster.ground.agents[0].pid().to_string());
        command.env("CLUSTER_PROGRAMS", Places::from_env().cluster_programs());
        Ok(command)
    }
}

/// Makes the files that a reader has, wherever commands are typed.
fn make_files(cluster: &Cluster, files: &Path) -> Result<()> {
    for directory in ["man", "new-run", "pins", "other-cgroup", "home/.kube"] {
        fs::create_dir_all(files.join(directory))?;
    }
    copy(Path::new("/etc"), &files.join("etc"))?;
    let own = files.join("etc/node-lb");
    fs::create_dir_all(own.join("manifests"))?;
    fs::create_dir_all(files.join("etc/bash_completion.d"))?;
    let kubeconfig = cluster.control_plane.admin_kubeconfig();
    fs::copy(&kubeconfig, own.join("kubeconfig"))?;
    fs::copy(&kubeconfig, files.join("home/.kube/config"))?;
    let config = "kubeconfig: /etc/node-lb/kubeconfig\ncluster-cidr: 10.244.0.0/16\n";
    fs::write(own.join("config.yaml"), config)?;
    symlink(&cluster.lab().node(1).dir, files.join("run"))?;
    Ok(())
}

/// Creates the objects that the examples are about, with an endpoint and a client at these addresses, and writes
/// all to a manifest.
fn make_objects(
    cluster: &mut Cluster,
    files: &Path,
    [endpoint, client]: [IpAddr; 2],
) -> Result<()> {
    let file = files.join("objects.yaml");
    let objects = include_str!("objects.yaml").replace("ENDPOINT", &endpoint.to_string());
    fs::write(&file, objects)?;
    let apply = format!("--filename={}", file.display());
    // Namespaces get their account for pods some time later.
    cluster.until(|cluster| cluster.control_plane.kubectl(&["apply", &apply]))?;
    let is_at = |ip| format!(r#"{{"podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}]}}"#);
    for (pod, namespace, status) in [
        (
            "node-lb-x7k2p",
            "kube-system",
            r#"{"phase":"Running"}"#.to_owned(),
        ),
        ("web-7d9f", "shop", is_at(endpoint)),
        ("client", "shop", is_at(client)),
    ] {
        let namespace = format!("--namespace={namespace}");
        let patch = format!(r#"--patch={{"status":{status}}}"#);
        let patch = [
            "patch",
            "pod",
            pod,
            &namespace,
            "--subresource=status",
            &patch,
        ];
        cluster.control_plane.kubectl(&patch)?;
    }
    write_manifest(cluster, files)
}

/// Writes what node-lb reads of the cluster's objects to a manifest.
fn write_manifest(cluster: &Cluster, files: &Path) -> Result<()> {
    let kinds = "nodes,services,endpointslices,servicecidrs";
    let all = ["get", kinds, "--all-namespaces", "--output=json"];
    let all = cluster.control_plane.kubectl(&all)?;
    Ok(fs::write(
        files.join("etc/node-lb/manifests/all.json"),
        all,
    )?)
}

/// Makes a directory of a copy of `deploy`, beside its parts, with the files that examples name.
fn make_place(files: &Path, place: &Path) -> Result<PathBuf> {
    let here = place.join("mine");
    let deploy = docs::root().join("deploy");
    copy(&deploy, place)?;
    copy(&deploy.join("example"), &here)?;
    symlink(&deploy, here.join("deploy"))?;
    symlink(files.join("etc/node-lb/manifests"), here.join("manifests"))?;
    let block = |page: &str, language: &str, part: &str| {
        let blocks = Page::read(page)?.blocks().into_iter();
        let mut blocks = blocks.filter(|block| block.language == language);
        let block = blocks.find(|block| block.text.contains(part));
        let block = block.with_context(|| format!("{page} has no {language} with {part:?}"))?;
        anyhow::Ok(block.text)
    };
    let queues = "docs/admission-queues.md";
    let values = block("docs/distributions/kubeadm.md", "yaml", "apiServer")?;
    let admission = Process::new(node_lb()?)
        .args(["admission", "defaults"])
        .output()?;
    fs::write(here.join("admission.yaml"), admission.stdout)?;
    fs::write(
        here.join("load.json"),
        block(queues, "json", "\"sources\"")?,
    )?;
    fs::write(
        here.join("arrivals.csv"),
        block(queues, "text", "t_ns,flow,hold_ns")?,
    )?;
    fs::write(here.join("values.yaml"), values)?;
    fs::write(here.join("bad.yaml"), BAD)?;
    Ok(here)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = Process::new("cp")
        .arg("--archive")
        .arg(from)
        .arg(to)
        .status()?;
    ensure!(copied.success(), "{} cannot be copied", from.display());
    Ok(())
}
