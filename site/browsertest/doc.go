// Package browsertest opens the built site in Chromium, as a folder of files without a server. `make test-site` runs it.
package browsertest
