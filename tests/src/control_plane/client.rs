//! Kubernetes objects for tests, typed and without `await`.

use std::{fmt::Debug, future::Future, time::Duration};

use anyhow::{Context, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        authentication::v1::TokenRequest,
        core::v1::{Node, Pod, ServiceAccount},
    },
};
use kube::{
    Api, Config, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::runtime::HostRuntime;
use crate::patience::patient;

/// The namespace of all objects unless a method names another one.
pub const NAMESPACE: &str = "default";

/// How many requests of [`Objects::create_all`] are under way.
const AT_A_TIME: usize = 8;

/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// Access to the API server as one user. It is cheap to clone.
#[derive(Clone)]
pub struct Client {
    kube: kube::Client,
    runtime: HostRuntime,
}

/// What every kind of object here supports.
pub trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

impl Client {
    /// A client configured by a kubeconfig.
    ///
    /// # Errors
    /// If it is not a valid kubeconfig.
    pub fn new(runtime: &HostRuntime, kubeconfig: &str) -> Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        let kube = runtime.wait(async move {
            let options = KubeConfigOptions::default();
            let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
            config.default_retry = false;
            anyhow::Ok(kube::Client::try_from(config)?)
        })?;
        Ok(Self {
            kube,
            runtime: runtime.clone(),
        })
    }

    /// Objects of a kind in [`NAMESPACE`].
    pub fn of<K: Kind + Resource<Scope = NamespaceResourceScope>>(&self) -> Objects<K> {
        self.of_namespace(NAMESPACE)
    }

    /// Objects of a kind in a namespace.
    pub fn of_namespace<K: Kind + Resource<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
    ) -> Objects<K> {
        self.objects(Api::namespaced(self.kube.clone(), namespace))
    }

    /// Objects of a kind that is in no namespace.
    pub fn cluster_wide<K: Kind>(&self) -> Objects<K> {
        self.objects(Api::all(self.kube.clone()))
    }

    /// The cluster's nodes.
    pub fn nodes(&self) -> Objects<Node> {
        self.cluster_wide()
    }

    /// The API server's answer to a GET of `path`.
    ///
    /// # Errors
    /// If that is not 2xx.
    pub fn text(&self, path: &str) -> Result<String> {
        let request = hyper::http::Request::get(path).body(Vec::new())?;
        let kube = self.kube.clone();
        let work = async move { kube.request_text(request).await };
        within_deadline(&self.runtime, work).with_context(|| format!("GET {path}"))
    }

    /// A token for a service account, as `kubectl create token` gets one.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn token(&self, namespace: &str, account: &str) -> Result<String> {
        let api = Api::<ServiceAccount>::namespaced(self.kube.clone(), namespace);
        let (request, account) = (TokenRequest::default(), account.to_owned());
        let work = async move {
            let parameters = PostParams::default();
            api.create_subresource::<_, TokenRequest>("token", &account, &parameters, &request)
                .await
        };
        let answer = within_deadline(&self.runtime, work).context("no token")?;
        let token = answer.status.and_then(|status| status.token);
        token.context("a token request without token")
    }

    /// Puts a pod on a node, as the scheduler does.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn bind(&self, pod: &str, node: &str) -> Result<()> {
        let api = Api::<Pod>::namespaced(self.kube.clone(), NAMESPACE);
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": pod },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let name = pod.to_owned();
        let work = async move {
            let parameters = PostParams::default();
            api.create_subresource::<_, Value>("binding", &name, &parameters, &binding)
                .await
        };
        within_deadline(&self.runtime, work)
            .map(drop)
            .with_context(|| format!("cannot bind pod {pod} to {node}"))
    }

    fn objects<K>(&self, api: Api<K>) -> Objects<K> {
        Objects {
            api,
            runtime: self.runtime.clone(),
        }
    }
}

/// Objects of one kind.
pub struct Objects<K> {
    api: Api<K>,
    runtime: HostRuntime,
}

impl<K: Kind> Objects<K> {
    /// Creates an object from a manifest, which must be of this kind.
    ///
    /// # Errors
    /// If it is not, or if the API server refuses it.
    pub fn create(&self, manifest: Value) -> Result<K> {
        let what = || format!("cannot create {}: {manifest}", K::kind(&()));
        let object: K = serde_json::from_value(manifest.clone()).with_context(what)?;
        let api = self.api.clone();
        let work = async move { api.create(&PostParams::default(), &object).await };
        within_deadline(&self.runtime, work).with_context(what)
    }

    /// Creates many objects, some at a time, and returns them in the same order.
    ///
    /// # Errors
    /// If one is not of this kind, or if the API server refuses it.
    pub fn create_all(&self, manifests: impl IntoIterator<Item = Value>) -> Result<Vec<K>> {
        let objects = manifests.into_iter().map(serde_json::from_value::<K>);
        let objects: Vec<_> = objects.collect::<Result<_, _>>()?;
        let (api, limit) = (self.api.clone(), patient(DEADLINE));
        let create = move |object: K| {
            let api = api.clone();
            async move {
                let parameters = PostParams::default();
                let created = timeout(limit, api.create(&parameters, &object)).await;
                let created = created.with_context(|| format!("no answer within {limit:?}"))?;
                anyhow::Ok(created?)
            }
        };
        let work = async move {
            let requests = stream::iter(objects).map(create).buffered(AT_A_TIME);
            requests.try_collect().await
        };
        let created = self.runtime.wait(work);
        created.with_context(|| format!("cannot create {} objects", K::kind(&())))
    }

    /// The object of this name, if there is one.
    ///
    /// # Errors
    /// If the API server does not say.
    pub fn get(&self, name: &str) -> Result<Option<K>> {
        let (api, key) = (self.api.clone(), name.to_owned());
        let work = async move { api.get_opt(&key).await };
        within_deadline(&self.runtime, work).with_context(|| self.what("get", name))
    }

    /// All objects that have these labels (`app=web`, or nothing).
    ///
    /// # Errors
    /// If the API server does not say.
    pub fn list(&self, labels: &str) -> Result<Vec<K>> {
        let (api, parameters) = (self.api.clone(), ListParams::default().labels(labels));
        let work = async move { api.list(&parameters).await };
        let list = within_deadline(&self.runtime, work);
        Ok(list.with_context(|| self.what("list", labels))?.items)
    }

    /// Changes the fields named, as a JSON merge patch.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn patch(&self, name: &str, patch: Value) -> Result<K> {
        let (api, key) = (self.api.clone(), name.to_owned());
        let work = async move {
            let parameters = PatchParams::default();
            api.patch(&key, &parameters, &Patch::Merge(patch)).await
        };
        within_deadline(&self.runtime, work).with_context(|| self.what("patch", name))
    }

    /// Changes the fields named of the object's status.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn patch_status(&self, name: &str, status: Value) -> Result<K> {
        let (api, key) = (self.api.clone(), name.to_owned());
        let patch = json!({ "status": status });
        let work = async move {
            let parameters = PatchParams::default();
            api.patch_status(&key, &parameters, &Patch::Merge(patch))
                .await
        };
        within_deadline(&self.runtime, work).with_context(|| self.what("patch the status of", name))
    }

    /// Deletes an object, which then goes as its kind does.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.delete_with(name, DeleteParams::default())
    }

    /// Deletes an object at once. For a pod, the kubelet does this when all of it has ended.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn delete_at_once(&self, name: &str) -> Result<()> {
        self.delete_with(name, DeleteParams::default().grace_period(0))
    }

    fn delete_with(&self, name: &str, parameters: DeleteParams) -> Result<()> {
        let (api, key) = (self.api.clone(), name.to_owned());
        let work = async move { api.delete(&key, &parameters).await };
        within_deadline(&self.runtime, work)
            .map(drop)
            .with_context(|| self.what("delete", name))
    }

    fn what(&self, verb: &str, name: &str) -> String {
        format!("cannot {verb} {} {name}", K::kind(&()))
    }
}

/// Whether an error is the API server's answer that there is no such object.
pub fn is_not_found(error: &anyhow::Error) -> bool {
    let answer = error.downcast_ref::<kube::Error>();
    matches!(answer, Some(kube::Error::Api(status)) if status.code == 404)
}

fn within_deadline<T: Send + 'static>(
    runtime: &HostRuntime,
    work: impl Future<Output = kube::Result<T>> + Send + 'static,
) -> Result<T> {
    let limit = patient(DEADLINE);
    let answer = runtime.wait(async move { timeout(limit, work).await });
    let answer = answer.with_context(|| format!("no answer within {limit:?}"))?;
    Ok(answer?)
}
