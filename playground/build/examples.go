package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// example is a YAML that the page can load.
type example struct {
	Title string `json:"title"`
	YAML  string `json:"yaml"`
}

// The examples: complete blocks of YAML of the cookbook, then the programs in examples, in the order of how much of the
// YAML they use. The page starts with the first.
var (
	recipes = []string{"Cookbook", "Send mail within a provider's limits", "Monorepo"}
	titles  = map[string]string{"Cookbook": "A shop with two kinds of topics"}
)

var programs = []string{"orders", "contacts", "users", "mailer", "threads", "minichat", "formats"}

func examplesOf(root string) ([]example, error) {
	cookbook, err := os.ReadFile(filepath.Join(root, "docs", "run", "cookbook.md"))
	if err != nil {
		return nil, err
	}
	var list []example
	for _, recipe := range recipes {
		yaml, err := blockOf(string(cookbook), recipe)
		if err != nil {
			return nil, err
		}
		title := recipe
		if other := titles[recipe]; other != "" {
			title = other
		}
		list = append(list, example{title, yaml})
	}
	for _, program := range programs {
		yaml, err := os.ReadFile(filepath.Join(root, "examples", program, "events", "outbox.yaml"))
		if err != nil {
			return nil, err
		}
		list = append(list, example{"Example program " + program, string(yaml)})
	}
	return list, nil
}

var fenced = regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n")

// blockOf returns the first block of YAML under a heading.
func blockOf(page, heading string) (string, error) {
	_, section, found := strings.Cut("\n"+page, "# "+heading+"\n")
	if !found {
		return "", fmt.Errorf("docs/run/cookbook.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	m := fenced.FindStringSubmatch(section)
	if m == nil {
		return "", fmt.Errorf("docs/run/cookbook.md has no YAML under %q", heading)
	}
	return m[1] + "\n", nil
}
