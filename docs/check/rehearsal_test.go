package check

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// rehearsalVariable names the folder of `make rehearsal`, which has a module proxy with what would be released.
const rehearsalVariable = "OUTBOXGEN_REHEARSAL"

// TestRehearsal is a newcomer who gets the release: the README and the tutorial are followed word for word, @latest
// included, in empty folders with an empty module cache, and a program is built with each module that users import.
func TestRehearsal(t *testing.T) {
	folder := os.Getenv(rehearsalVariable)
	if folder == "" {
		t.Skip("make rehearsal runs it")
	}
	n := newcomer(t, folder)
	t.Run("tutorial", n.tutorial)
	t.Run("readme", n.readme)
	for _, m := range n.modules(t) {
		t.Run(m, func(t *testing.T) { n.program(t, m) })
	}
}

// visitor is somebody who has Go and PostgreSQL, and nothing of ours.
type visitor struct {
	proxy   string // the folder of the module proxy
	version string // that would be released
	env     []string
}

func newcomer(t *testing.T, folder string) visitor {
	t.Helper()
	n := visitor{proxy: filepath.Join(folder, "proxy")}
	list, err := os.ReadFile(filepath.Join(n.proxy, "github.com", "outboxgen", "outboxgen", "@v", "list"))
	require.NoError(t, err)
	n.version = strings.TrimSpace(string(list))
	usual, err := exec.CommandContext(t.Context(), "go", "env", "GOPROXY").Output()
	require.NoError(t, err)
	_, err = exec.LookPath("createdb")
	require.NoError(t, err, "the README says createdb: install the client programs of PostgreSQL")
	server, err := url.Parse(pgtest.Server(t, pgserver.Options{}).URL())
	require.NoError(t, err)
	password, _ := server.User.Password()
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case strings.HasPrefix(name, "PG"), strings.HasPrefix(name, "OUTBOXGEN_"), name == "DATABASE_URL":
		case strings.HasPrefix(name, "GO") && name != "GOCACHE" && name != "GOROOT", name == "CGO_ENABLED":
		default:
			n.env = append(n.env, variable)
		}
	}
	n.env = append(n.env,
		"GOPROXY=file://"+n.proxy+","+strings.TrimSpace(string(usual)),
		"GOMODCACHE="+filepath.Join(folder, "mod"),
		"GONOSUMDB=github.com/outboxgen", // nobody has published these
		// Each rehearsal releases the same version with other content. The go command would remember the imports of the one before.
		"GODEBUG=goindex=0",
		"CGO_ENABLED=0",
		"PGHOST="+server.Hostname(), "PGPORT="+server.Port(), "PGUSER="+server.User.Username(), "PGPASSWORD="+password,
	)
	return n
}

// shell returns a shell in an empty folder.
func (n visitor) shell(t *testing.T) shell {
	return shell{t, t.TempDir(), n.env}
}

func (n visitor) tutorial(t *testing.T) {
	sh := n.shell(t)
	followTutorial(t, sh.dir, sh.env, func(script string) string { return script })
}

// readme follows the section "In your module", and compiles the Go of the README with what it generates.
func (n visitor) readme(t *testing.T) {
	var yaml, install string
	var code []block
	for _, b := range read(t, "README.md") {
		switch {
		case b.language == "yaml":
			yaml = b.text
		case b.language == "go":
			code = append(code, b)
		case b.language == "sh" && strings.HasPrefix(b.text, "mkdir app"):
			install = b.text
		}
	}
	require.Len(t, code, 2, "the program, and the handler")
	sh := n.shell(t)
	module{t, sh.dir}.write("outbox.yaml", yaml)
	const step = "# replace events/outbox.yaml with the YAML above\n"
	require.Contains(t, install, step)
	t.Log(sh.run(strings.Replace(install, step, "cp ../outbox.yaml events/outbox.yaml\n", 1), "README.md"))
	app := module{t, sh.folder()}
	app.write("app.go", code[0].text)
	sh.run("go vet ./...", "the program of the README")
	app.write("events/handle_turn_finalized.go", `package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

`+code[1].text)
	app.write("events/mini_chat_handlers.go", `package events

import (
	"context"

	"github.com/google/uuid"
)
`+code[1].comments["go"])
	sh.run(`go tool outboxgen init --worker events
		sed -i.bak 's/&events.MiniChatHandler{}/\&events.MiniChatHandler{Billing: nil}/' cmd/worker/main.go
		grep -q 'Billing: nil' cmd/worker/main.go
		go vet ./...`, "the handler of the README")
	require.Contains(t, sh.run("go tool outboxgen version", "version"), "outboxgen "+n.version+" ")
}

// modules returns the modules that would be released, without the root.
func (n visitor) modules(t *testing.T) (list []string) {
	t.Helper()
	prefix := filepath.Join(n.proxy, "github.com", "outboxgen", "outboxgen")
	require.NoError(t, filepath.WalkDir(prefix, func(path string, _ os.DirEntry, err error) error {
		if dir, ok := strings.CutSuffix(path, string(filepath.Separator)+"@v"); ok && dir != prefix {
			list = append(list, filepath.ToSlash(strings.TrimPrefix(dir, prefix+string(filepath.Separator))))
		}
		return err
	}))
	require.Greater(t, len(list), 10)
	return list
}

// program gets a module, and builds and runs a program that uses it. Its configuration is empty, so that it connects to nothing.
func (n visitor) program(t *testing.T, name string) {
	path := "github.com/outboxgen/outboxgen/" + name
	call := map[string]string{
		"publish":   "m.New(m.Config{})",
		"telemetry": "m.New(m.Config{})",
		"consume":   "m.New(nil, nil, m.Config{})",
		"sqltx":     "m.Wrap(nil), error(nil)",
	}[strings.Split(name, "/")[0]]
	require.NotEmpty(t, call, "say how a program uses %s", path)
	sh := n.shell(t)
	module{t, sh.dir}.write("main.go", fmt.Sprintf(`// Command main uses one module of outboxgen.
package main

import (
	"fmt"

	m %q
)

func main() {
	_, err := %s
	fmt.Println("it runs:", err)
}
`, path, call))
	out := sh.run("go mod init example.com/program && go get "+path+"@latest && go mod tidy && go run . && go list -m all", path)
	require.Contains(t, out, "it runs:")
	want := []string{"github.com/outboxgen/outboxgen " + n.version, path + " " + n.version}
	have := regexp.MustCompile(`(?m)^github\.com/outboxgen/\S+ v\S+$`).FindAllString(out, -1)
	slices.Sort(have)
	require.Equal(t, want, have, "a program loads the modules of ours that it uses, and no others")
}
