package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// rehearse releases the commit that is checked out in a clone, and packs all public modules into a module proxy in the
// folder proxy of dir. It empties dir first.
func rehearse(ctx context.Context, repo git, dir string, log io.Writer) ([]packed, error) {
	if err := empty(dir); err != nil {
		return nil, err
	}
	status, err := repo.lines(ctx, "status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if len(status) > 0 {
		fmt.Fprintf(log, "the rehearsal is without what is not committed: %s\n", few(status))
	}
	clone := git{dir: filepath.Join(dir, "clone")}
	if _, err := repo.run(ctx, "", "clone", "--quiet", "--no-checkout", repo.dir, clone.dir); err != nil {
		return nil, err
	}
	head, err := repo.line(ctx, "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"switch", "--quiet", "--force-create", "rehearsal", head},
		{"config", "user.name", "rehearsal"},
		{"config", "user.email", "rehearsal@localhost"},
		{"config", "commit.gpgSign", "false"},
	} {
		if _, err := clone.run(ctx, "", args...); err != nil {
			return nil, err
		}
	}
	version, err := next(ctx, clone)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "rehearsing the release of %s in %s\n", version, dir)
	r := release{repo: clone, version: version, now: time.Now(), log: io.Discard}
	if err := r.run(ctx); err != nil {
		return nil, fmt.Errorf("release %s: %w", version, err)
	}
	var list []packed
	for _, m := range r.modules {
		if !m.public {
			continue
		}
		p, err := pack(ctx, clone, m, version, m.tag(version), filepath.Join(dir, "proxy"))
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// empty removes what an earlier rehearsal has left in a folder. It refuses a folder of something else.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		switch e.Name() {
		case "clone", "proxy", "mod":
		default:
			return fmt.Errorf("%s is not the folder of a rehearsal: it has %s", dir, e.Name())
		}
	}
	// The files of a module cache are read-only, unless GOFLAGS says otherwise.
	if _, err := os.Stat(filepath.Join(dir, "mod")); err == nil {
		clean := exec.Command("go", "clean", "-modcache")
		clean.Env = append(os.Environ(), "GOMODCACHE="+filepath.Join(dir, "mod"))
		if out, err := clean.CombinedOutput(); err != nil {
			return fmt.Errorf("go clean -modcache: %w: %s", err, out)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}

// next returns the version to rehearse: that of the first section of the changelog, or the next minor version. A
// changelog that lists nothing since the last release gets an entry, in the clone.
func next(ctx context.Context, clone git) (string, error) {
	tags, err := clone.lines(ctx, "tag", "--list")
	if err != nil {
		return "", err
	}
	file := filepath.Join(clone.dir, "CHANGELOG.md")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	name, rest, _, err := section(string(text))
	if err != nil {
		return "", err
	}
	latest := latestOf(tags)
	if version := "v" + name; semver.Canonical(version) == version && semver.Compare(version, latest) > 0 {
		return version, nil
	}
	version := "v0.1.0"
	if latest != "" {
		var major, minor, patch int
		if _, err := fmt.Sscanf(latest, "v%d.%d.%d", &major, &minor, &patch); err != nil {
			return "", err
		}
		version = fmt.Sprintf("v%d.%d.0", major, minor+1)
	}
	if _, err := date(string(text), version, time.Now()); err == nil {
		return version, nil
	}
	entry := "## [Unreleased]\n\n- A rehearsal.\n\n"
	first := regexp.QuoteMeta(fmt.Sprintf("## [%s]%s\n", name, rest))
	at := regexp.MustCompile(first).FindIndex(text)[0]
	if name == unreleased {
		text = []byte(strings.Replace(string(text), "## [Unreleased]\n", strings.TrimSuffix(entry, "\n"), 1))
	} else {
		text = []byte(string(text[:at]) + entry + string(text[at:]))
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return "", err
	}
	_, err = clone.run(ctx, "", "commit", "--quiet", "--all", "--message", "A rehearsal")
	return version, err
}
