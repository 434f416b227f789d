// Package browsertest has the tests of the playground in a real Chromium, from a folder, as `make test-playground` runs
// them. `tools/need.sh axe` fetches axe-core, which checks accessibility.
package browsertest
