//! An image as an archive: an OCI image layout (github.com/opencontainers/image-spec,
//! image-layout.md) that also has the `manifest.json` of `docker save`, for engines that know only
//! that.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::recipe::Recipe;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image of one layer, for one or more architectures.
pub struct Image {
    /// The name, with registry and tag.
    pub name: String,
    pub recipe: Recipe,
}

/// An architecture's name in Go, and the directory of the image's files for it.
pub type Files = (&'static str, PathBuf);

impl Image {
    /// Writes an image of these files to `file`. The same files give the same archive.
    ///
    /// For several architectures the image is an index of one image for each. `docker save` has no
    /// form for that, so the archive is an OCI image layout only.
    ///
    /// # Errors
    /// If files cannot be read or written.
    pub fn write(&self, files: &[Files], file: &Path) -> io::Result<()> {
        let mut blobs = Blobs::default();
        let mut images = Vec::new();
        let mut docker = Vec::new();
        for (architecture, root) in files {
            let layer = blobs.add(LAYER, layer(root)?);
            let config = blobs.add_json(CONFIG, &self.config(architecture, &layer));
            docker.push(json!({
                "Config": Blobs::path(&config),
                "RepoTags": [self.name],
                "Layers": [Blobs::path(&layer)],
            }));
            let mut image = blobs.add_json(
                MANIFEST,
                &json!({
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": config,
                    "layers": [layer],
                }),
            );
            image["platform"] = json!({ "architecture": architecture, "os": "linux" });
            images.push(image);
        }
        let mut top = match &images[..] {
            [image] => image.clone(),
            _ => blobs.add_json(
                INDEX,
                &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": images }),
            ),
        };
        let tag = self.name.rsplit(':').next();
        top["annotations"] = json!({
            // The key that containerd and podman use; then the specification's.
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": tag,
        });

        let mut archive = Builder::new(BufWriter::new(File::create(file)?));
        let mut heads = vec![
            ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })),
            (
                "index.json",
                json!({ "schemaVersion": 2, "manifests": [top] }),
            ),
        ];
        if images.len() == 1 {
            heads.push(("manifest.json", json!(docker)));
        }
        for (path, value) in heads {
            append(&mut archive, path, value.to_string().as_bytes(), 0o644)?;
        }
        for (path, bytes) in &blobs.0 {
            append(&mut archive, path, bytes, 0o644)?;
        }
        archive.into_inner()?.into_inner()?.sync_all()
    }

    fn config(&self, architecture: &str, layer: &Value) -> Value {
        json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "User": self.recipe.user,
                "Env": self.recipe.environment,
                "Entrypoint": self.recipe.entrypoint,
            },
            // The digest of the uncompressed layer; this layer is not compressed.
            "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
        })
    }
}

/// The archive's blobs by digest.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Adds a blob and returns its descriptor.
    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest: String = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let descriptor = json!({
            "mediaType": media_type,
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        });
        self.0.insert(Self::path(&descriptor), bytes);
        descriptor
    }

    fn add_json(&mut self, media_type: &str, value: &Value) -> Value {
        self.add(media_type, value.to_string().into_bytes())
    }

    /// The path of a descriptor's blob in the archive.
    fn path(descriptor: &Value) -> String {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        format!("blobs/{}", digest.replace(':', "/"))
    }
}

/// The files below `root` as a layer. All belong to root and have no time.
fn layer(root: &Path) -> io::Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    let mut waiting = entries(root)?;
    while let Some(path) = waiting.pop() {
        let name = path.strip_prefix(root).map_err(io::Error::other)?;
        if path.is_dir() {
            let mut header = header(0, 0o755);
            header.set_entry_type(EntryType::Directory);
            layer.append_data(&mut header, name.join(""), io::empty())?;
            waiting.extend(entries(&path)?);
        } else {
            append(&mut layer, name, &fs::read(&path)?, 0o755)?;
        }
    }
    layer.into_inner()
}

/// A directory's entries in reverse order of names.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by(|one, other| other.cmp(one));
    Ok(entries)
}

fn append(
    archive: &mut Builder<impl io::Write>,
    path: impl AsRef<Path>,
    bytes: &[u8],
    mode: u32,
) -> io::Result<()> {
    archive.append_data(&mut header(bytes.len(), mode), path, bytes)
}

/// A header without owner and time. `append_data` adds the path.
fn header(size: usize, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn write(architectures: &[&'static str]) -> (BTreeMap<String, Vec<u8>>, PathBuf) {
        let directory = std::env::temp_dir().join(format!(
            "node-lb-image-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let roots = architectures.iter().map(|architecture| {
            let root = directory.join(architecture);
            fs::create_dir_all(root.join("usr/bin")).unwrap();
            fs::write(
                root.join("usr/bin/x"),
                format!("an agent for {architecture}"),
            )
            .unwrap();
            (*architecture, root)
        });
        let roots: Vec<Files> = roots.collect();
        let file = directory.join("image.tar");
        let image = Image {
            name: "localhost/node-lb:1.2.3".to_owned(),
            recipe: Recipe {
                environment: vec!["A=b".to_owned()],
                user: "0:0".to_owned(),
                entrypoint: vec!["/usr/bin/x".to_owned()],
            },
        };
        image.write(&roots, &file).unwrap();
        (read(&fs::read(file).unwrap()), directory)
    }

    /// The files of an archive; directories without content.
    fn read(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 0));
            (entry.path().unwrap().display().to_string(), bytes)
        });
        entries.collect()
    }

    fn json(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
        serde_json::from_slice(&files[path]).unwrap()
    }

    #[test]
    fn every_descriptor_leads_to_its_blob() {
        let (files, directory) = write(&["amd64"]);
        let index = json(&files, "index.json");
        let descriptor = &index["manifests"][0];
        let names = &descriptor["annotations"];
        assert_eq!(names["io.containerd.image.name"], "localhost/node-lb:1.2.3");
        assert_eq!(names["org.opencontainers.image.ref.name"], "1.2.3");
        let manifest = json(&files, &Blobs::path(descriptor));
        for descriptor in [descriptor, &manifest["config"], &manifest["layers"][0]] {
            let bytes = &files[&Blobs::path(descriptor)];
            assert_eq!(descriptor["size"], bytes.len());
            let expected = Blobs::default().add("", bytes.clone());
            assert_eq!(descriptor["digest"], expected["digest"]);
        }
        let config = json(&files, &Blobs::path(&manifest["config"]));
        assert_eq!(config["config"]["User"], "0:0");
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            manifest["layers"][0]["digest"]
        );
        let layer = read(&files[&Blobs::path(&manifest["layers"][0])]);
        let names: Vec<_> = layer.keys().collect();
        assert_eq!(names, ["usr/", "usr/bin/", "usr/bin/x"]);
        assert_eq!(layer["usr/bin/x"], b"an agent for amd64");
        let docker = json(&files, "manifest.json");
        assert_eq!(docker[0]["Config"], Blobs::path(&manifest["config"]));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn an_index_has_an_image_for_each_architecture() {
        let (files, directory) = write(&["amd64", "arm64"]);
        assert!(!files.contains_key("manifest.json"));
        let top = json(&files, "index.json")["manifests"][0].clone();
        assert_eq!(top["mediaType"], INDEX);
        let name = &top["annotations"]["io.containerd.image.name"];
        assert_eq!(name, "localhost/node-lb:1.2.3");
        let index = json(&files, &Blobs::path(&top));
        assert_eq!(index["manifests"].as_array().unwrap().len(), 2);
        for (number, architecture) in ["amd64", "arm64"].into_iter().enumerate() {
            let descriptor = &index["manifests"][number];
            assert_eq!(descriptor["platform"]["architecture"], architecture);
            let manifest = json(&files, &Blobs::path(descriptor));
            let config = json(&files, &Blobs::path(&manifest["config"]));
            assert_eq!(config["architecture"], architecture);
            let layer = read(&files[&Blobs::path(&manifest["layers"][0])]);
            let expected = format!("an agent for {architecture}");
            assert_eq!(layer["usr/bin/x"], expected.as_bytes());
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
