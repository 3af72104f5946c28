//! A browser in a lab: Debian's Chromium, without a screen and driven by WebDriver.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use hyper::Method;
use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    control_plane::HostRuntime,
    http_json,
    lab::{Cgroup, Host, daemon::Daemon},
    patience::{PATIENCE, patient, try_eventually},
};

/// Takes the commands, and starts the browser.
const DRIVER: &str = "chromedriver";
/// Where it serves, on the browser's host.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9515);

/// A browser with one window. Dropped, it ends with all its processes.
#[derive(Debug)]
pub struct Browser {
    // Dropped first, which shows its log if a test fails.
    driver: Daemon,
    _processes: Processes,
    runtime: HostRuntime,
    session: String,
}

/// A key that has no character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Tab,
    Enter,
}

impl Key {
    /// WebDriver's character for it.
    fn character(self) -> char {
        match self {
            Self::Tab => '\u{e004}',
            Self::Enter => '\u{e007}',
        }
    }
}

/// What the browser has written to the page's console.
#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    /// `SEVERE`, `WARNING` or less.
    pub level: String,
    /// Who complains: `network`, `security`, `javascript` or another part of the browser.
    pub source: String,
    #[serde(rename = "message")]
    pub text: String,
}

impl Browser {
    /// Starts it on `host`, with everything that it writes in `directory`, which it makes.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub fn start(host: &Host, directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let processes = Processes(host.cgroup().join("browser"));
        let mut command = host.command(DRIVER)?;
        Cgroup::create(processes.0.clone())?.adopt(&mut command)?;
        command
            .arg(format!("--port={}", ADDRESS.port()))
            .env("HOME", directory)
            .env("TMPDIR", directory);
        let driver = Daemon::run(DRIVER, command, directory).context(
            "install the packages chromium and chromium-driver, or run `cargo xtask setup`, which does",
        )?;
        let mut browser = Self {
            driver,
            _processes: processes,
            runtime: HostRuntime::start(host)?,
            session: String::new(),
        };
        browser.wait_until_ready()?;
        browser.open_window(directory)?;
        Ok(browser)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        try_eventually(|| {
            self.driver.check()?;
            let status = command(
                &self.runtime,
                Method::GET,
                "/status".to_owned(),
                Value::Null,
            )?;
            ensure!(status["ready"] == true, "{DRIVER} is not ready: {status}");
            Ok(())
        })
    }

    fn open_window(&mut self, directory: &Path) -> Result<()> {
        let profile = directory.join("profile");
        let arguments = [
            "--headless",
            // Root has no sandbox, and containers little shared memory.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            &format!("--user-data-dir={}", profile.display()),
        ];
        let capabilities = json!({
            "browserName": "chrome",
            "timeouts": { "script": patient(PATIENCE).as_millis() as u64 },
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": arguments },
        });
        let body = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let session = command(&self.runtime, Method::POST, "/session".to_owned(), body)
            .context("Chromium does not start")?;
        let id = session["sessionId"].as_str();
        self.session = id.context("a session without a name")?.to_owned();
        Ok(())
    }

    /// Goes to an address, and waits until its document is loaded.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn visit(&self, url: &str) -> Result<()> {
        self.post("/url", json!({ "url": url })).map(drop)
    }

    /// Runs a function's body in the page, with these `arguments`. Returns what it returns; of a promise,
    /// what that yields.
    ///
    /// # Errors
    /// If it throws, or opens a dialog.
    pub fn run(&self, script: &str, arguments: Value) -> Result<Value> {
        let body = json!({ "script": script, "args": arguments });
        self.post("/execute/sync", body)
    }

    /// Waits until a function's body returns something that is true. Returns that.
    ///
    /// # Errors
    /// If it throws, or nothing is true within [`PATIENCE`].
    pub fn until(&self, condition: &str, arguments: Value) -> Result<Value> {
        let script = format!(
            "const holds = () => {{ {condition} }};
             const wait = async () => {{
               for (;;) {{
                 const found = holds();
                 if (found) return found;
                 await new Promise((again) => setTimeout(again, 20));
               }}
             }};
             return wait();"
        );
        self.run(&script, arguments)
    }

    /// Clicks on the middle of an element, by its CSS selector.
    ///
    /// # Errors
    /// If it is not there, or something is above it.
    pub fn click(&self, selector: &str) -> Result<()> {
        let body = json!({ "using": "css selector", "value": selector });
        let element = self.post("/element", body)?;
        // An object with one entry, the name of which is the same in all browsers.
        let ids = element.as_object().and_then(|found| found.values().next());
        let id = ids.and_then(Value::as_str);
        let id = id.with_context(|| format!("{selector} has no name: {element}"))?;
        self.post(&format!("/element/{id}/click"), json!({}))
            .map(drop)
    }

    /// Types a text, where the focus is.
    ///
    /// # Errors
    /// If the browser does not take it.
    pub fn write(&self, text: &str) -> Result<()> {
        let press = |key| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": String::from(key) }))
        };
        let actions: Vec<_> = text.chars().flat_map(press).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.post("/actions", json!({ "actions": [keyboard] }))
            .map(drop)
    }

    /// Presses a key.
    ///
    /// # Errors
    /// If the browser does not take it.
    pub fn press(&self, key: Key) -> Result<()> {
        self.write(&key.character().to_string())
    }

    /// Gives the page so much room, in pixels.
    ///
    /// # Errors
    /// If the browser does not.
    pub fn resize(&self, width: u32, height: u32) -> Result<()> {
        // A window would not be as narrow as a phone.
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size)
    }

    /// Has the page believe that whoever looks at it prefers `dark` or `light`.
    ///
    /// # Errors
    /// If the browser does not.
    pub fn prefer(&self, scheme: &str) -> Result<()> {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.devtools(
            "Emulation.setEmulatedMedia",
            json!({ "features": [feature] }),
        )
    }

    /// What has been written to the console since the last call.
    ///
    /// # Errors
    /// If the browser does not say.
    pub fn console(&self) -> Result<Vec<Message>> {
        let messages = self.post("/se/log", json!({ "type": "browser" }))?;
        Ok(serde_json::from_value(messages)?)
    }

    /// Writes what is to be seen to a PNG file.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn photograph(&self, file: &Path) -> Result<()> {
        let path = format!("/session/{}/screenshot", self.session);
        let image = command(&self.runtime, Method::GET, path, Value::Null)?;
        let ByteString(image) = serde_json::from_value(image).context("this is not Base64")?;
        fs::write(file, image).with_context(|| format!("cannot write {}", file.display()))
    }

    fn devtools(&self, name: &str, parameters: Value) -> Result<()> {
        let body = json!({ "cmd": name, "params": parameters });
        self.post("/goog/cdp/execute", body).map(drop)
    }

    fn post(&self, path: &str, body: Value) -> Result<Value> {
        let path = format!("/session/{}{path}", self.session);
        command(&self.runtime, Method::POST, path, body)
    }
}

/// A command of WebDriver; its result.
fn command(runtime: &HostRuntime, method: Method, path: String, body: Value) -> Result<Value> {
    // What a script waits for may come at the last moment.
    let limit = patient(2 * PATIENCE);
    runtime.wait(async move {
        let asked = timeout(limit, http_json::ask(method, ADDRESS, &path, &body)).await;
        let (status, mut answer) = asked
            .with_context(|| format!("{DRIVER} has no answer to {path} within {limit:?}"))??;
        let value = answer["value"].take();
        let message = value["message"].as_str().unwrap_or_default();
        ensure!(status.is_success(), "{path}: {}: {message}", value["error"]);
        Ok(value)
    })
}

/// A cgroup of the browser's own: it has processes that leave the process group.
#[derive(Debug)]
struct Processes(PathBuf);

impl Drop for Processes {
    fn drop(&mut self) {
        if let Err(problem) = Cgroup::remove(&self.0) {
            eprintln!("{problem:#}");
        }
    }
}
