package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// inspect tells what the source in root is. Git knows the commit, its time, and whether it has the tag of a version.
// Without git, in an unpacked archive of the source, the version and SOURCE_DATE_EPOCH must be given.
func inspect(root, version string) (source, error) {
	s := source{root: root}
	epoch, err := epoch()
	if err != nil {
		return s, err
	}
	commit, modified, tag, noGit := checkout(root, &s.time)
	if !epoch.IsZero() {
		s.time = epoch
	}
	switch {
	case noGit != nil && version == "":
		return s, fmt.Errorf("no version: give VERSION, because git does not tell the commit: %w", noGit)
	case noGit != nil && epoch.IsZero():
		return s, fmt.Errorf("no time for files: set SOURCE_DATE_EPOCH, because git does not tell the commit: %w", noGit)
	case version == "" && !modified:
		version = tag
	}
	suffix := ""
	if modified {
		suffix = "-modified"
	}
	if version == "" {
		// This is how the go command names a commit without a tag.
		s.name = strings.TrimPrefix(module.PseudoVersion("v0", "", s.time, commit[:12]), "v") + suffix
		version = "(devel)"
	} else {
		if semver.Canonical(version) != version {
			return s, fmt.Errorf("%q is not a version: it must be like v0.1.0 or v0.2.0-rc.1", version)
		}
		s.name = strings.TrimPrefix(version, "v") + suffix
	}
	s.stamp = version
	if noGit == nil {
		s.stamp += " " + commit + " " + s.time.Format(time.RFC3339)
		if modified {
			s.stamp += " modified"
		}
	}
	return s, nil
}

// checkout returns the commit of the checkout in root, whether files differ from it, and the highest version among
// its tags.
func checkout(root string, at *time.Time) (commit string, modified bool, tag string, err error) {
	git := func(args ...string) string {
		if err != nil {
			return ""
		}
		var text []byte
		text, err = exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("git %s: %s", args[0], strings.TrimSpace(string(exit.Stderr)))
		}
		return strings.TrimSpace(string(text))
	}
	if up := git("rev-parse", "--show-cdup"); up != "" {
		return "", false, "", fmt.Errorf("%s belongs to another checkout", root)
	}
	commit = git("rev-parse", "HEAD")
	seconds := git("log", "-1", "--format=%ct")
	modified = git("status", "--porcelain") != ""
	for name := range strings.Lines(git("tag", "--points-at", "HEAD", "--list", "v*")) {
		if name = strings.TrimSpace(name); semver.Canonical(name) == name && semver.Compare(name, tag) > 0 {
			tag = name
		}
	}
	if err == nil {
		*at, err = unix(seconds)
	}
	return commit, modified, tag, err
}

// epoch returns SOURCE_DATE_EPOCH, and no time without it.
func epoch() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Time{}, nil
	}
	at, err := unix(text)
	if err != nil {
		return at, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return at, nil
}

func unix(text string) (time.Time, error) {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is not a number of seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
