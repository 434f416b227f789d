package brokertest

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
)

// RabbitMQ is a private RabbitMQ server with its own port mapper (epmd). Its user guest, with the password guest, may
// do everything, and reader, with the password reader, may only read. No message may be larger than MaxMessageSize.
type RabbitMQ struct {
	bin, dir         string
	port, dist, epmd int
	mu               sync.Mutex
	mapper, node     *process
}

// MaxMessageSize is max_message_size of the server.
const MaxMessageSize = 512 << 10

const definitions = `{
	"users": [
		{"name": "guest", "password": "guest", "tags": ["administrator"]},
		{"name": "reader", "password": "reader", "tags": []}
	],
	"vhosts": [{"name": "/"}, {"name": "closed"}],
	"permissions": [
		{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
		{"user": "reader", "vhost": "/", "configure": "", "write": "", "read": ".*"}
	]
}`

// findRabbitMQ returns the folder of rabbitmq-server and rabbitmqctl, or "". Debian's own rabbitmq-server in the PATH
// is a wrapper that only root may call, for the one server of the machine.
func findRabbitMQ() string {
	for _, pattern := range []string{
		"/usr/lib/rabbitmq/bin", "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
		"/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin", "/opt/rabbitmq/sbin",
	} {
		dirs, _ := filepath.Glob(pattern) // the only error is a bad pattern
		for _, dir := range dirs {
			if _, err := os.Stat(filepath.Join(dir, "rabbitmq-server")); err == nil {
				return dir
			}
		}
	}
	return ""
}

// NeedRabbitMQ skips a test if RabbitMQ is not installed.
func NeedRabbitMQ(t testing.TB) {
	t.Helper()
	if findRabbitMQ() == "" {
		skip(t, "RabbitMQ")
	}
}

// StartRabbitMQ starts a server, which takes some seconds. The caller must Stop it.
func StartRabbitMQ() (*RabbitMQ, error) {
	bin := findRabbitMQ()
	if bin == "" {
		return nil, fmt.Errorf("RabbitMQ %w", errMissing)
	}
	dir, err := os.MkdirTemp("", "outboxgen-rabbitmq-")
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{bin: bin, dir: dir}
	if err := r.create(); err != nil {
		return nil, errors.Join(fmt.Errorf("start RabbitMQ: %w", err), r.Stop())
	}
	return r, nil
}

func (r *RabbitMQ) create() (err error) {
	for _, port := range []*int{&r.port, &r.dist, &r.epmd} {
		if *port, err = freeport.Find(); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"rabbitmq.conf": fmt.Sprintf("max_message_size = %d\ndisk_free_limit.absolute = 1MB\nload_definitions = %s\n",
			MaxMessageSize, filepath.Join(r.dir, "definitions.json")),
		"definitions.json": definitions,
		"plugins":          "[].\n",
		".erlang.cookie":   "outboxgen" + strconv.Itoa(r.port),
	} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o400); err != nil {
			return err
		}
	}
	mapper := exec.Command("epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(r.epmd))
	mapper.Env = r.env()
	if r.mapper, err = start(mapper, r.file("epmd.log")); err != nil {
		return err
	}
	return r.run()
}

func (r *RabbitMQ) file(name string) string { return filepath.Join(r.dir, name) }

func (r *RabbitMQ) env() []string {
	return without([]string{"RABBITMQ_", "ERL_", "HOME=", "NOTIFY_SOCKET=", "LC_"},
		"HOME="+r.dir,
		"LC_ALL=C.UTF-8",
		"RUNNING_UNDER_SYSTEMD=1", // the script becomes the server, instead of starting and guarding it
		"RABBITMQ_CONF_ENV_FILE="+os.DevNull,
		"RABBITMQ_CONFIG_FILE="+r.file("rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+r.file("plugins"),
		"RABBITMQ_MNESIA_BASE="+r.file("mnesia"),
		"RABBITMQ_LOG_BASE="+r.file("log"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_GENERATED_CONFIG_DIR="+r.file("generated"),
		"RABBITMQ_PID_FILE="+r.file("pid"),
		"RABBITMQ_NODENAME=outboxgen"+strconv.Itoa(r.port)+"@localhost",
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+strconv.Itoa(r.port),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(r.dist),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT="+strconv.Itoa(r.epmd),
	)
}

func (r *RabbitMQ) run() error {
	cmd := exec.Command(filepath.Join(r.bin, "rabbitmq-server"))
	cmd.Env, cmd.Dir = r.env(), r.dir
	node, err := start(cmd, r.file("server.log"))
	if err != nil {
		return err
	}
	r.node = node
	return node.await(r.Addr())
}

// Addr returns the address of the server, which Restart does not change.
func (r *RabbitMQ) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// URL returns the URL for a user, whose password is the same as the name.
func (r *RabbitMQ) URL(user string) string {
	u := url.URL{Scheme: "amqp", User: url.UserPassword(user, user), Host: r.Addr(), Path: "/"}
	return u.String()
}

// Kill ends the server with SIGKILL. Its data stays.
func (r *RabbitMQ) Kill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node.kill()
}

// Restart starts a killed server again, on the same port and data.
func (r *RabbitMQ) Restart() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.node.kill(); err != nil {
		return err
	}
	return r.run()
}

// Control runs rabbitmqctl and returns its output.
func (r *RabbitMQ) Control(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(r.bin, "rabbitmqctl"), append([]string{"--quiet"}, args...)...)
	cmd.Env, cmd.Dir = r.env(), r.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("rabbitmqctl %v: %w: %s", args, err, out)
	}
	return string(out), nil
}

// Stop ends the server and removes its data.
func (r *RabbitMQ) Stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.node.kill(), r.mapper.kill(), os.RemoveAll(r.dir))
}
