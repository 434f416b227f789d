// Package browsertest has the tests of package dashboard in a real Chromium, and takes the screenshots of the documentation.
// It is a module of its own, so that nobody who uses the dashboard gets its dependencies.
//
// `tools/need.sh chromium` installs the browser, and `tools/need.sh axe` fetches axe-core, which checks accessibility.
package browsertest
