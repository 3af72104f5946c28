//! The files of the page.

/// Scripts are modules: the page loads `main.js`, which imports the others.
macro_rules! files {
    ($($path:literal: $content_type:literal, $file:literal;)*) => {
        /// The content type and the content of the file at a path.
        pub fn file(path: &str) -> Option<(&'static str, &'static str)> {
            match path {
                $($path => Some(($content_type, include_str!(concat!("bundle/", $file)))),)*
                _ => None,
            }
        }
    };
}

files! {
    "/": "text/html; charset=utf-8", "index.html";
    "/page/page.css": "text/css; charset=utf-8", "page.css";
    "/page/main.js": "text/javascript; charset=utf-8", "main.js";
    "/page/api.js": "text/javascript; charset=utf-8", "api.js";
    "/page/dom.js": "text/javascript; charset=utf-8", "dom.js";
    "/page/format.js": "text/javascript; charset=utf-8", "format.js";
    "/page/latency.js": "text/javascript; charset=utf-8", "latency.js";
    "/page/plot.js": "text/javascript; charset=utf-8", "plot.js";
    "/page/table.js": "text/javascript; charset=utf-8", "table.js";
    "/page/overview.js": "text/javascript; charset=utf-8", "overview.js";
    "/page/services.js": "text/javascript; charset=utf-8", "services.js";
    "/page/service.js": "text/javascript; charset=utf-8", "service.js";
    "/page/flows.js": "text/javascript; charset=utf-8", "flows.js";
    "/page/admission.js": "text/javascript; charset=utf-8", "admission.js";
    "/page/explain.js": "text/javascript; charset=utf-8", "explain.js";
    "/page/node.js": "text/javascript; charset=utf-8", "node.js";
}
