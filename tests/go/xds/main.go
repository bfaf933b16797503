// Servers and a client of gRPC (grpc-go) that finds them by xDS: does what tests/e2e/grpc/xds.py does, told by the same
// lines, so that the same tests are for both.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/xds"
)

const (
	servers = 3
	callers = 8
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "client" {
		call()
		return
	}
	var all []*server
	var ports []string
	for range servers {
		one := serve()
		all = append(all, one)
		ports = append(ports, one.port)
	}
	fmt.Println(strings.Join(ports, " "))
	var client *client
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer := "ok"
		switch words[0] {
		case "go":
			client = start(words[1])
		case "delay":
			all[whole(words[1])].delay.Store(int64(number(words[2]) * 1e6))
		case "count":
			before := counts(all)
			time.Sleep(time.Duration(number(words[1]) * 1e9))
			var said []string
			for at, count := range counts(all) {
				said = append(said, strconv.FormatInt(count-before[at], 10))
			}
			answer = strings.Join(said, " ") + " " + strconv.Itoa(client.failures())
		case "stop":
			client.stop()
		}
		fmt.Println(answer)
	}
}

// server answers every call with what it was sent.
type server struct {
	port  string
	delay atomic.Int64
	count atomic.Int64
}

func serve() *server {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	_, port, err := net.SplitHostPort(socket.Addr().String())
	check(err)
	one := &server{port: port}
	one.delay.Store(2e6)
	answer := func(_ any, stream grpc.ServerStream) error {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		one.count.Add(1)
		time.Sleep(time.Duration(one.delay.Load()))
		return stream.SendMsg(&message)
	}
	go func() {
		check(grpc.NewServer(grpc.ForceServerCodec(same{}), grpc.UnknownServiceHandler(answer)).Serve(socket))
	}()
	return one
}

func counts(all []*server) (found []int64) {
	for _, one := range all {
		found = append(found, one.count.Load())
	}
	return found
}

// client is a process of its own: grpc-go reads its bootstrap once, when a process begins.
type client struct {
	process *exec.Cmd
	in      interface{ Close() error }
	lines   *bufio.Scanner
	lock    sync.Mutex
	failed  []string
	ended   chan struct{}
}

func start(address string) *client {
	process := exec.Command(os.Args[0], "client")
	process.Env = append(os.Environ(), "GRPC_XDS_BOOTSTRAP_CONFIG="+fmt.Sprintf(bootstrap, address))
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	check(err)
	out, err := process.StdoutPipe()
	check(err)
	check(process.Start())
	one := &client{process: process, in: in, lines: bufio.NewScanner(out), ended: make(chan struct{})}
	if !one.lines.Scan() || one.lines.Text() != "ready" {
		fail("the client did not begin: " + one.lines.Text())
	}
	go func() {
		for one.lines.Scan() {
			one.lock.Lock()
			one.failed = append(one.failed, one.lines.Text())
			one.lock.Unlock()
		}
		close(one.ended)
	}()
	return one
}

const bootstrap = `{
	"xds_servers": [{
		"server_uri": "%s",
		"channel_creds": [{"type": "insecure"}],
		"server_features": ["xds_v3"]
	}],
	"node": {"id": "stock-grpc-go"}
}`

func (one *client) failures() int {
	one.lock.Lock()
	defer one.lock.Unlock()
	for _, why := range one.failed[:min(3, len(one.failed))] {
		fmt.Fprintln(os.Stderr, why)
	}
	return len(one.failed)
}

// stop lets calls under way end.
func (one *client) stop() {
	check(one.in.Close())
	<-one.ended
}

// call is the client's process: calls until its input ends; says that it is ready, then each failure in a line. Goes on until
// it is killed then, so that its reports do, too.
func call() {
	parent := os.Getppid()
	channel, err := grpc.NewClient("xds:///web",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(same{})))
	check(err)
	once := func(patience time.Duration, options ...grpc.CallOption) error {
		end, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		sent, got := []byte("x"), []byte(nil)
		return channel.Invoke(end, "/t/Unary", &sent, &got, options...)
	}
	check(once(30*time.Second, grpc.WaitForReady(true)))
	fmt.Println("ready")
	var going atomic.Bool
	going.Store(true)
	var group sync.WaitGroup
	for range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			for going.Load() {
				// Without WaitForReady: a call that finds no server has failed.
				if err := once(10 * time.Second); err != nil {
					fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
				}
			}
		}()
	}
	for bufio.NewScanner(os.Stdin).Scan() {
	}
	going.Store(false)
	group.Wait()
	check(os.Stdout.Close())
	// The end of the other process is the end of this one, too.
	for os.Getppid() == parent {
		time.Sleep(50 * time.Millisecond)
	}
}

// same is a codec of messages that are bytes.
type same struct{}

func (same) Marshal(message any) ([]byte, error) {
	return *message.(*[]byte), nil
}

func (same) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (same) Name() string { return "proto" }

func number(word string) float64 {
	value, err := strconv.ParseFloat(word, 64)
	check(err)
	return value
}

func whole(word string) int { return int(number(word)) }

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
