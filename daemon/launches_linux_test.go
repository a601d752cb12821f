package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
	"subjectbroker/worker/workertest"
)

// self is this program, which plays its roles inside trees too.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	must(t, err)
	return path
}

// waitingTree asks for a launch of worker that can open.
func waitingTree(t *testing.T, d *daemontest.Daemon) *operatorv1.OpenLaunchRequest {
	t.Helper()
	return daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places}).Request("worker", daemontest.TreeOptions{})
}

// atTier makes a grant hold from a tier on.
func atTier(tier string) daemontest.Condition {
	return func(r *operatorv1.CreateGrantsRequest) { r.Tier = tier }
}

// Whatever runs in a launch is its subject, whatever it claims; the same command
// outside is what it claims, at the lowest tier.
func TestLaunchDecidesTheSubject(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "for the worker in a launch")
	d.Put("memo", "for the other")
	d.AddSubject("worker", "other")
	d.Grant("worker", "read:plan", atTier("bound"))
	d.Grant("other", "read:memo")

	tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
	equal(t, "its tier", launch.GetTier(), "bound")
	must(t, tree.Go(self(t), "read", d.Home, "other", "plan"))
	code, stdout, stderr := tree.Wait()
	equal(t, "reading inside as another: "+stderr, fmt.Sprint(code, stdout), "0for the worker in a launch")
	opened := last(d, "run.open")
	equal(t, "who it was", fmt.Sprint(opened.SubjectID, opened.Tier, opened.Cause, opened.Decision), "workerboundSUBJECT_MISMATCHallow")
	equal(t, "in which launch", opened.LaunchID, launch.GetLaunchId())
	equal(t, "the release", last(d, "acquire").LaunchID, launch.GetLaunchId())

	_, stdout, _ = daemontest.Exit(t, exec.Command(self(t), "read", d.Home, "other", "memo"))
	equal(t, "the same claim outside", stdout, "for the other")
	equal(t, "its tier outside", last(d, "run.open").Tier, "cooperative")
	_, stdout, _ = daemontest.Exit(t, exec.Command(self(t), "read", d.Home, "worker", "plan"))
	equal(t, "the plan outside", stdout, "")
	equal(t, "the cause", last(d, "acquire").Cause, "TIER_TOO_LOW")

	ended := awaitEntry(t, d, "launch.end")
	equal(t, "its end", fmt.Sprint(ended.LaunchID, ended.Cause, ended.Count), launch.GetLaunchId()+"TREE_ENDED1")
	list, err := d.Operator().ListRuns(t.Context(), &operatorv1.ListRunsRequest{Ended: true})
	must(t, err)
	equal(t, "launches that are shown", len(list.GetLaunches()), 1)
	equal(t, "its state", list.GetLaunches()[0].GetState(), "ended")
	equal(t, "reads in it", list.GetLaunches()[0].GetReads(), 1)
	equal(t, "open launches", len(d.Status().GetLaunches()), 0)
}

// awaitEntry waits for the newest entry of a kind.
func awaitEntry(t *testing.T, d *daemontest.Daemon, kind string) verify.Entry {
	t.Helper()
	for until := time.Now().Add(daemontest.Patience); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if all := d.Entries(kind); len(all) > 0 {
			return all[len(all)-1]
		}
	}
	t.Fatalf("there is no entry %s", kind)
	return verify.Entry{}
}

// Inside a launch the operator's socket is out of reach, and when it is reached
// all the same it serves nobody who is not plain.
func TestLaunchIsNoOperator(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	tree, _ := d.OpenTree("worker", daemontest.TreeOptions{})
	must(t, tree.Go(self(t), "status", d.Home))
	code, _, _ := tree.Wait()
	equal(t, "asking from inside", code, wire.ExitUnavailable)

	// Another name of the socket, which somebody left outside the home.
	left := daemontest.NewHome(t)
	must(t, os.MkdirAll(filepath.Join(left, "run", "operator"), 0o700))
	must(t, os.Link(place.OperatorSocket(d.SocketDir), place.OperatorSocket(filepath.Join(left, "run"))))
	code, _, stderr := daemontest.Exit(t, exec.Command(self(t), "status", left))
	equal(t, "through it from outside: "+stderr, code, 0)
	tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
	must(t, tree.Go(self(t), "status", left))
	code, _, stderr = tree.Wait()
	equal(t, "through it from inside: "+stderr, code, wire.ExitDenied)
	refused := last(d, "authz")
	equal(t, "the entry", fmt.Sprint(refused.Cause, refused.SubjectID, refused.Tier, refused.LaunchID), "OPERATOR_REFUSEDworkerbound"+launch.GetLaunchId())
}

// What a tier promises is looked for in the tree itself, and each piece that is
// missing is named.
func TestLaunchIsProbed(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	tmux := fmt.Sprintf("/tmp/tmux-%d", os.Geteuid())
	if err := os.Mkdir(tmux, 0o700); err == nil {
		t.Cleanup(func() { _ = os.Remove(tmux) })
	}
	work, elsewhere := daemontest.NewHome(t), daemontest.NewHome(t)
	twice := daemontest.NewHome(t)
	below := filepath.Join(work, "below")
	must(t, os.Mkdir(below, 0o700))
	for _, c := range []struct {
		name    string
		options daemontest.TreeOptions
		want    string // in the refusal; empty: it opens
	}{
		{"bound", daemontest.TreeOptions{}, ""},
		{"sandboxed", daemontest.TreeOptions{Workspace: work}, ""},
		{"without network", daemontest.TreeOptions{NoNet: true}, ""},
		{"all mounts as outside", daemontest.TreeOptions{OldMounts: true}, "a mount namespace of its own"},
		{"processes outside are visible", daemontest.TreeOptions{OldProc: true}, "a /proc of its own"},
		{"the home is visible", daemontest.TreeOptions{ShowHome: true}, "a view without " + d.Home},
		{"the home is visible elsewhere", daemontest.TreeOptions{Alias: twice}, "it is at " + twice},
		{"the broker's socket can be replaced", daemontest.TreeOptions{OpenBroker: true}, "a read-only directory of the broker's socket"},
		{"no broker's socket", daemontest.TreeOptions{NoBroker: true}, "the directory of the broker's socket"},
		{"ways out of the tree", daemontest.TreeOptions{ShowRuntime: true}, "a view without "},
		{"not alone", daemontest.TreeOptions{Crowded: true}, "a first process that is alone"},
		{"an open view", daemontest.TreeOptions{Workspace: work, OpenView: true}, "a closed view"},
		{"a folder beside its workspace", daemontest.TreeOptions{Workspace: work, Shown: []daemontest.Shown{{Folder: elsewhere, At: elsewhere}}}, "a closed view"},
		{"another folder in the place of its workspace", daemontest.TreeOptions{Workspace: work, Shown: []daemontest.Shown{{Folder: elsewhere, At: work}}}, "a closed view: " + work},
		{"another folder in its workspace", daemontest.TreeOptions{Workspace: work, Shown: []daemontest.Shown{{Folder: elsewhere, At: below}}}, "a closed view: " + below},
		{"the same folder in its workspace", daemontest.TreeOptions{Workspace: work, Shown: []daemontest.Shown{{Folder: below, At: below}}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Places = d.Places
			tree := daemontest.NewTree(t, c.options)
			opened, err := d.Operator().OpenLaunch(t.Context(), tree.Request("worker", c.options))
			if c.want == "" {
				must(t, err)
				equal(t, "its state", opened.GetLaunch().GetState(), "open")
				return
			}
			equal(t, "the reason", daemontest.Reason(err), wire.PlatformUnsupported)
			if !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("it says %v, want %q", err, c.want)
			}
		})
	}
	// A promise that was not asked for is not kept either: the network.
	tree := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places})
	request := tree.Request("worker", daemontest.TreeOptions{})
	request.NoNet = true
	_, err := d.Operator().OpenLaunch(t.Context(), request)
	equal(t, "a network that is there", daemontest.Reason(err), wire.PlatformUnsupported)
	equal(t, "launches that were opened", len(d.Entries("launch.open")), 4+len(refusedLaunches(d)))
}

func refusedLaunches(d *daemontest.Daemon) []verify.Entry {
	return slices.DeleteFunc(d.Entries("launch.open"), func(e verify.Entry) bool { return e.Decision == "allow" })
}

// For root a sandbox that could give orders to the kernel is none.
func TestLaunchOfRootIsProbed(t *testing.T) {
	daemontest.NeedRoot(t, "orders to the kernel")
	d := daemontest.Start(t)
	d.AddSubject("worker")
	options := daemontest.TreeOptions{Places: d.Places, Workspace: daemontest.NewHome(t), OpenProc: true}
	tree := daemontest.NewTree(t, options)
	_, err := d.Operator().OpenLaunch(t.Context(), tree.Request("worker", options))
	equal(t, "the reason", daemontest.Reason(err), wire.PlatformUnsupported)
	if !strings.Contains(fmt.Sprint(err), "a closed view: /proc/sys") {
		t.Errorf("it says %v", err)
	}
}

// The tier is what was found, not what was asked for: a workspace that says that
// everything may be written closes nothing, and what is the broker's is in none.
func TestLaunchIsInAWorkspace(t *testing.T) {
	parent := daemontest.NewHome(t)
	home := filepath.Join(parent, "home")
	must(t, os.Mkdir(home, 0o700))
	sockets := daemontest.NewHome(t)
	d := daemontest.StartWith(t, daemontest.Options{Home: home, SocketDir: sockets})
	d.AddSubject("worker")
	links := daemontest.NewHome(t)
	link := func(name, to string) string {
		path := filepath.Join(links, name)
		must(t, os.Symlink(to, path))
		return path
	}
	tree := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places}) // of the tier bound
	for _, c := range []struct {
		name, workspace string
		want            wire.Reason
		because         string
	}{
		{"everything", "/", wire.InvalidArgument, "the whole file system"},
		{"everything, through a link", link("root", "/"), wire.InvalidArgument, "the whole file system"},
		{"around the home", parent, wire.InvalidArgument, "which is the broker's"},
		{"around the home, through a link", link("parent", parent), wire.InvalidArgument, "which is the broker's"},
		{"the home", home, wire.InvalidArgument, "which is the broker's"},
		{"in the home", filepath.Join(home, "audit"), wire.InvalidArgument, "which is the broker's"},
		{"in the home, through a link", link("audit", filepath.Join(home, "audit")), wire.InvalidArgument, "which is the broker's"},
		{"around the sockets", sockets, wire.InvalidArgument, "which is the broker's"},
		{"beside the operator's socket", filepath.Join(sockets, "operator"), wire.InvalidArgument, "which is the broker's"},
		{"beside the broker's socket", filepath.Join(sockets, "broker"), wire.InvalidArgument, "which is the broker's"},
		{"nothing", filepath.Join(parent, "nothing"), wire.InvalidArgument, "there is nothing"},
		{"a folder of an open view", links, wire.PlatformUnsupported, "a closed view"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := d.Operator().OpenLaunch(t.Context(), tree.Request("worker", daemontest.TreeOptions{Workspace: c.workspace}))
			equal(t, "the reason", daemontest.Reason(err), c.want)
			if !strings.Contains(fmt.Sprint(err), c.because) {
				t.Errorf("it says %v, want %q", err, c.because)
			}
		})
	}
	work := filepath.Join(links, "work")
	must(t, os.Mkdir(work, 0o700))
	_, launch := d.OpenTree("worker", daemontest.TreeOptions{Workspace: work})
	equal(t, "with a workspace of its own", fmt.Sprint(launch.GetTier(), launch.GetWorkspace()), "sandboxed"+work)
	closed := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places, Workspace: work})
	opened, err := d.Operator().OpenLaunch(t.Context(), closed.Request("worker", daemontest.TreeOptions{Workspace: link("work-too", work)}))
	must(t, err)
	equal(t, "with one through a link", opened.GetLaunch().GetWorkspace(), work)
}

// A workspace that another mount shows is what it is of.
func TestLaunchIsInNoWorkspaceOfTheBroker(t *testing.T) {
	daemontest.NeedRoot(t, "workspace")
	parent := daemontest.NewHome(t)
	home := filepath.Join(parent, "home")
	must(t, os.Mkdir(home, 0o700))
	d := daemontest.StartWith(t, daemontest.Options{Home: home})
	d.AddSubject("worker")
	again := daemontest.NewHome(t)
	if err := unix.Mount(parent, again, "", unix.MS_BIND, ""); err != nil {
		daemontest.LeaveOut(t, "workspace", "nothing can be mounted: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(again, unix.MNT_DETACH) })
	options := daemontest.TreeOptions{Places: d.Places, Workspace: again}
	tree := daemontest.NewTree(t, options)
	_, err := d.Operator().OpenLaunch(t.Context(), tree.Request("worker", options))
	if err == nil {
		t.Error("a tree may write around the home")
	}
}

// A tree becomes one launch, also when several ask at once.
func TestLaunchOpensOnce(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker", "other")
	for range 5 {
		tree := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places})
		results := make(chan error)
		for i := range 4 {
			request := tree.Request([]string{"worker", "other"}[i%2], daemontest.TreeOptions{})
			go func() {
				_, err := d.Operator().OpenLaunch(t.Context(), request)
				results <- err
			}()
		}
		opened := 0
		for range 4 {
			err := <-results
			if err == nil {
				opened++
			} else if !strings.Contains(err.Error(), "in a launch already") {
				t.Errorf("it says %v", err)
			}
		}
		equal(t, "launches of one tree", opened, 1)
	}
	equal(t, "launches", len(d.Status().GetLaunches()), 5)
}

// What did not open leaves nothing: its process is not held.
func TestRefusedLaunchLeavesNothing(t *testing.T) {
	daemontest.NeedRoot(t, "full disk")
	home := daemontest.NewHome(t)
	mount(t, place.AuditDir(home), "tmpfs", "size=1m,mode=0700")
	d := daemontest.StartWith(t, daemontest.Options{Home: home})
	d.AddSubject("worker")
	d.Put("readme", "hello")
	fill(t, filepath.Join(place.AuditDir(home), "filler"))
	for err := error(nil); err == nil; { // the operator's reserve has an end
		_, err = d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:readme"}})
	}
	tree := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places})
	held := func() (n int) {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		for _, fd := range all {
			if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, "pidfd") {
				n++
			}
		}
		return n
	}
	before := held()
	for range 20 {
		_, err := d.Operator().OpenLaunch(t.Context(), tree.Request("worker", daemontest.TreeOptions{}))
		equal(t, "the reason", daemontest.Reason(err), wire.AuditFailed)
	}
	if after := held(); after >= before+20 {
		t.Errorf("%d processes are held, and were %d", after, before)
	}
	must(t, os.Remove(filepath.Join(place.AuditDir(home), "filler")))
	recovers(t, d, func() error {
		_, err := d.Operator().OpenLaunch(t.Context(), tree.Request("worker", daemontest.TreeOptions{}))
		return err
	})
	equal(t, "launches", len(d.Status().GetLaunches()), 1)
}

// The end of a launch does not wait for the log: the tree is gone while the disk
// does not answer.
func TestLaunchEndsOnAStalledDisk(t *testing.T) {
	home := daemontest.NewHome(t)
	stall, thaw := stallable(t, place.AuditDir(home))
	d := daemontest.StartWith(t, daemontest.Options{Home: home})
	d.AddSubject("worker")
	tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
	must(t, tree.Go(self(t), "hold", d.Home))
	_, err := tree.Line()
	must(t, err)
	stall()
	answered := make(chan error, 1)
	go func() {
		_, err := d.Operator().EndRun(t.Context(), &operatorv1.EndRunRequest{RunId: launch.GetLaunchId()})
		answered <- err
	}()
	tree.Wait()
	equal(t, "the log, which still is waited for", d.Status().GetAuditState(), "ok")
	thaw()
	<-answered
	awaitEntry(t, d, "launch.end")
}

// P09: a stop of the daemon ends runs, and no launch: what is asked meanwhile is
// not refused for an end that did not happen.
func TestLaunchGoesOnThroughAStop(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "x")
	d.AddSubject("worker")
	d.Grant("worker", "read:plan")
	tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
	must(t, tree.Go(self(t), "load", d.Home))
	for range 4 {
		line, err := tree.Line()
		must(t, err)
		equal(t, "inside", line, "reads")
		d.Restart()
		equal(t, "the launch", d.Status().GetLaunches()[0].GetLaunchId(), launch.GetLaunchId())
		must(t, tree.Say("again"))
	}
	for _, e := range d.Entries() {
		if e.Cause == "LAUNCH_ENDED" {
			t.Errorf("entry %d, %s: the launch had not ended", e.Seq, e.Kind)
		}
	}
}

// Sockets outside the home: the operator's is looked for there too.
func TestLaunchIsProbedOutsideTheHome(t *testing.T) {
	d := daemontest.StartWith(t, daemontest.Options{SocketDir: daemontest.NewHome(t)})
	d.AddSubject("worker")
	_, launch := d.OpenTree("worker", daemontest.TreeOptions{})
	equal(t, "with all covered", launch.GetState(), "open")
	options := daemontest.TreeOptions{Places: d.Places, ShowOperator: true}
	tree := daemontest.NewTree(t, options)
	_, err := d.Operator().OpenLaunch(t.Context(), tree.Request("worker", options))
	equal(t, "with the operator's socket", daemontest.Reason(err), wire.PlatformUnsupported)
	if !strings.Contains(fmt.Sprint(err), "a view without "+filepath.Join(d.SocketDir, "operator")) {
		t.Errorf("it says %v", err)
	}
}

// Only a child of the caller's becomes a launch, and only once.
func TestLaunchIsTheCallersChild(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	d.Put("there", "x")
	for i := range 5 {
		d.Put(fmt.Sprintf("big%d", i+1), strings.Repeat("x", 1<<20))
	}
	tree := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places})
	for _, c := range []struct {
		name    string
		change  func(*operatorv1.OpenLaunchRequest)
		want    wire.Reason
		because string
	}{
		{"this process", func(r *operatorv1.OpenLaunchRequest) { r.Pid = int32(os.Getpid()) }, wire.InvalidArgument, "not a child"},
		{"the first process of all", func(r *operatorv1.OpenLaunchRequest) { r.Pid = 1 }, wire.InvalidArgument, "not a child"},
		{"none", func(r *operatorv1.OpenLaunchRequest) { r.Pid = 0 }, wire.InvalidArgument, "first process"},
		{"no subject", func(r *operatorv1.OpenLaunchRequest) { r.Subject = "nobody" }, wire.InvalidArgument, "no subject is named nobody"},
		{"no profile", func(r *operatorv1.OpenLaunchRequest) { r.Profile = "none" }, wire.InvalidArgument, "no profile"},
		{"a sandbox without a workspace", func(r *operatorv1.OpenLaunchRequest) { r.Sandbox = true }, wire.InvalidArgument, "workspace"},
		{"a workspace with detours", func(r *operatorv1.OpenLaunchRequest) { r.Sandbox, r.Workspace = true, "/tmp/../etc" }, wire.InvalidArgument, "workspace"},
		{"content twice", func(r *operatorv1.OpenLaunchRequest) { r.Disclose = []string{"a", "a"} }, wire.InvalidArgument, "twice"},
		{"content that is not there", func(r *operatorv1.OpenLaunchRequest) { r.Disclose = []string{"a"} }, wire.InvalidArgument, "no resource is named a"},
		{"content that is there, and some that is not", func(r *operatorv1.OpenLaunchRequest) { r.Disclose = []string{"there", "a"} }, wire.InvalidArgument, "no resource is named a"},
		{"more content than a message holds", func(r *operatorv1.OpenLaunchRequest) { r.Disclose = []string{"big1", "big2", "big3", "big4", "big5"} }, wire.ResourceTooLarge, "KiB"},
		{"a long command", func(r *operatorv1.OpenLaunchRequest) { r.Command = strings.Repeat("x", 257) }, wire.InvalidArgument, "command"},
		{"as it should be", func(*operatorv1.OpenLaunchRequest) {}, wire.Allowed, ""},
		{"the same again", func(*operatorv1.OpenLaunchRequest) {}, wire.InvalidArgument, "in a launch already"},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := tree.Request("worker", daemontest.TreeOptions{})
			c.change(request)
			_, err := d.Operator().OpenLaunch(t.Context(), request)
			equal(t, "the reason", daemontest.Reason(err), c.want)
			if !strings.Contains(fmt.Sprint(err), c.because) {
				t.Errorf("it says %v, want %q", err, c.because)
			}
		})
	}
	equal(t, "contents that left for what did not open", len(d.Entries("launch.disclose")), 0)
	plain := exec.Command("sleep", "1000")
	must(t, plain.Start())
	t.Cleanup(func() { _ = plain.Process.Kill(); _ = plain.Wait() })
	request := tree.Request("worker", daemontest.TreeOptions{})
	request.Pid = int32(plain.Process.Pid)
	_, err := d.Operator().OpenLaunch(t.Context(), request)
	equal(t, "a child without namespaces", daemontest.Reason(err), wire.PlatformUnsupported)
}

// Content goes to a trusted tree on the operator's word, and the log says so
// before it does.
func TestLaunchDiscloses(t *testing.T) {
	d := daemontest.Start(t)
	d.PutKind("token", "secret", "s3cret")
	d.Put("other", "text")
	d.AddSubject("worker")
	tree := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places})
	request := tree.Request("worker", daemontest.TreeOptions{})
	request.Disclose = []string{"token", "other"}
	opened, err := d.Operator().OpenLaunch(t.Context(), request)
	must(t, err)
	var got []string
	for _, c := range opened.GetContents() {
		got = append(got, c.GetName()+"="+string(c.GetContent()))
	}
	equal(t, "contents", strings.Join(got, " "), "token=s3cret other=text")
	equal(t, "names on the launch", strings.Join(opened.GetLaunch().GetDisclosed(), " "), "other token")
	disclosed := d.Entries("launch.disclose")
	equal(t, "entries", len(disclosed), 2)
	for _, e := range disclosed {
		equal(t, "what it says", fmt.Sprint(e.LaunchID == opened.GetLaunch().GetLaunchId(), e.SubjectID, e.Disclosed, e.Decision), "trueworkeryesallow")
		if e.Seq > last(d, "launch.open").Seq {
			t.Error("the entry came after the launch")
		}
	}
	equal(t, "grants that this needed", len(d.Grants("worker")), 0)
}

// A file that is pinned by its path may have grown: what is handed over is counted
// as it is, and the log does not say that what did not fit was.
func TestLaunchDisclosesNoMoreThanFits(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	dir := daemontest.NewHome(t)
	var names []string
	for i := range 5 {
		name := fmt.Sprintf("file%d", i)
		path := filepath.Join(dir, name)
		write(t, path, "small")
		d.AddFile(name, path, "path")
		write(t, path, strings.Repeat("x", 1<<20))
		names = append(names, name)
	}
	tree := daemontest.NewTree(t, daemontest.TreeOptions{Places: d.Places})
	request := tree.Request("worker", daemontest.TreeOptions{})
	request.Disclose = names
	_, err := d.Operator().OpenLaunch(t.Context(), request)
	equal(t, "the reason", daemontest.Reason(err), wire.ResourceTooLarge)
	disclosed := d.Entries("launch.disclose")
	refused := disclosed[len(disclosed)-1]
	equal(t, "of what did not fit", fmt.Sprint(refused.Disclosed, refused.Decision, refused.ReasonCode), "errorRESOURCE_TOO_LARGE")
	request.Disclose = names[:3]
	opened, err := d.Operator().OpenLaunch(t.Context(), request)
	must(t, err)
	equal(t, "contents that fit", len(opened.GetContents()), 3)
}

// Launches are an ordinary uid's, and these tests run as root where they run for
// everybody: here some run once more as nobody in particular.
func TestLaunchOfAnOrdinaryUID(t *testing.T) {
	daemontest.NeedRoot(t, "ordinary uid")
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		daemontest.LeaveOut(t, "ordinary uid", "setpriv is not installed")
	}
	const uid = 65534
	home := daemontest.NewHome(t)
	program, tmp := filepath.Join(home, "test"), filepath.Join(home, "tmp")
	image, err := os.ReadFile(self(t))
	must(t, err)
	must(t, workertest.WriteProgram(program, image))
	must(t, os.Mkdir(tmp, 0o700))
	for _, path := range []string{home, program, tmp} {
		must(t, os.Chown(path, uid, uid))
	}
	names := []string{
		"TestLaunchDecidesTheSubject", "TestLaunchIsNoOperator", "TestLaunchIsProbed", "TestLaunchIsInAWorkspace", "TestLaunchDiscloses",
		"TestLaunchEnds", "TestLaunchGoesOnThroughAStop",
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*daemontest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "--",
		program, "-test.v", "-test.run=^("+strings.Join(names, "|")+")$")
	cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "TMPDIR=" + tmp, "PATH=" + os.Getenv("PATH")}
	said, err := cmd.CombinedOutput()
	if _, why, left := strings.Cut(string(said), "suite left out: launch: "); left {
		why, _, _ = strings.Cut(why, "\n")
		daemontest.LeaveOut(t, "launch", "as an ordinary uid: "+why)
	}
	if err != nil {
		t.Errorf("%v:\n%s", err, said)
	}
	for _, name := range names {
		if !strings.Contains(string(said), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass", name)
		}
	}
}

// What ends a launch ends everything in it: its streams at once, its processes,
// and its row.
func TestLaunchEnds(t *testing.T) {
	for _, c := range []struct {
		name  string
		end   func(*testing.T, *daemontest.Daemon, *daemontest.Tree, *operatorv1.Launch)
		cause string // of launch.end; empty: it goes on
		runs  string // cause of run.end
	}{
		{"the operator's word", func(t *testing.T, d *daemontest.Daemon, _ *daemontest.Tree, l *operatorv1.Launch) {
			t.Helper()
			ended, err := d.Operator().EndRun(t.Context(), &operatorv1.EndRunRequest{RunId: l.GetLaunchId()})
			must(t, err)
			equal(t, "its state", ended.GetLaunch().GetState(), "ended")
			if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/.", l.GetPid())); err == nil {
				t.Error("its first process is there")
			}
		}, "ENDED_BY_OPERATOR", "LAUNCH_ENDED"},
		{"kill -9 of its first process", func(_ *testing.T, _ *daemontest.Daemon, tree *daemontest.Tree, _ *operatorv1.Launch) {
			tree.Kill()
		}, "TREE_ENDED", ""},
		{"disabling its subject", func(_ *testing.T, d *daemontest.Daemon, _ *daemontest.Tree, _ *operatorv1.Launch) {
			d.SetEnabled("worker", false)
		}, "", "SUBJECT_CHANGED"},
		{"removing its subject", func(_ *testing.T, d *daemontest.Daemon, _ *daemontest.Tree, _ *operatorv1.Launch) {
			d.RemoveSubject("worker")
		}, "", "SUBJECT_CHANGED"},
		{"a lock", func(_ *testing.T, d *daemontest.Daemon, _ *daemontest.Tree, _ *operatorv1.Launch) { d.Lock() }, "", "LOCKED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := daemontest.Start(t)
			d.AddSubject("worker")
			tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
			must(t, tree.Go(self(t), "hold", d.Home))
			held, err := tree.Line()
			must(t, err)
			equal(t, "the run inside", held, "worker bound")
			run := d.Status().GetRuns()[0]
			equal(t, "how it is attested", run.GetAttested(), "launch")
			equal(t, "its launch", run.GetLaunchId(), launch.GetLaunchId())
			equal(t, "runs in the launch", d.Status().GetLaunches()[0].GetRuns(), 1)

			c.end(t, d, tree, launch)
			ended := awaitEntry(t, d, "run.end")
			equal(t, "the end of the run is about", ended.LaunchID, launch.GetLaunchId())
			if c.runs != "" {
				equal(t, "the cause", ended.Cause, c.runs)
			}
			if c.cause == "" {
				line, err := tree.Line()
				must(t, err)
				if !strings.HasPrefix(line, "ended ") {
					t.Errorf("inside it says %q, want the end of the run", line)
				}
				equal(t, "open launches", len(d.Status().GetLaunches()), 1)
				return
			}
			equal(t, "the end of the launch", awaitEntry(t, d, "launch.end").Cause, c.cause)
			equal(t, "open launches", len(d.Status().GetLaunches()), 0)
		})
	}
}

// A launch that ends while the vault is locked has its end in the log after the
// unlock, once.
func TestLaunchEndsWhileLocked(t *testing.T) {
	for _, c := range []struct {
		cause string
		end   func(*testing.T, *daemontest.Daemon, *daemontest.Tree, *operatorv1.Launch)
	}{
		{"ENDED_BY_OPERATOR", func(t *testing.T, d *daemontest.Daemon, _ *daemontest.Tree, l *operatorv1.Launch) {
			t.Helper()
			_, err := d.Operator().EndRun(t.Context(), &operatorv1.EndRunRequest{RunId: l.GetLaunchId()})
			must(t, err)
		}},
		{"TREE_ENDED", func(_ *testing.T, _ *daemontest.Daemon, tree *daemontest.Tree, _ *operatorv1.Launch) { tree.Kill() }},
	} {
		t.Run(c.cause, func(t *testing.T) {
			d := daemontest.Start(t)
			d.AddSubject("worker")
			tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
			d.Lock()
			equal(t, "open launches while it is locked", len(d.Status().GetLaunches()), 1)
			c.end(t, d, tree, launch)
			eventually(t, "the launch to be over", func() bool { return len(d.Status().GetLaunches()) == 0 })
			equal(t, "entries while it is locked", len(d.Entries("launch.end")), 0)
			d.Unlock()
			equal(t, "the cause", awaitEntry(t, d, "launch.end").Cause, c.cause)
			d.Restart()
			equal(t, "ends in the log", len(d.Entries("launch.end")), 1)
			equal(t, "launches after a restart", len(d.Status().GetLaunches()), 0)
		})
	}
}

// A later subject of the same name is another: a launch of the first is nobody.
func TestLaunchOfARemovedSubject(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "x")
	d.AddSubject("worker")
	tree, _ := d.OpenTree("worker", daemontest.TreeOptions{})
	d.RemoveSubject("worker")
	d.AddSubject("worker")
	d.Grant("worker", "read:plan")
	must(t, tree.Go(self(t), "read", d.Home, "worker", "plan"))
	code, stdout, _ := tree.Wait()
	equal(t, "reading", fmt.Sprint(code, stdout), "1")
	equal(t, "the cause", last(d, "run.open").Cause, "SUBJECT_CHANGED")
	_, stdout, _ = daemontest.Exit(t, exec.Command(self(t), "read", d.Home, "worker", "plan"))
	equal(t, "outside", stdout, "x")
}

// A launch outlives its daemon: killed, started again, the tree is the same
// subject in the same launch, its old run has ended in the log before anybody
// could open another.
func TestLaunchIsAdopted(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("plan", "x")
	d.AddSubject("worker", "other")
	d.Grant("worker", "read:plan", atTier("bound"))
	tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
	must(t, tree.Go(self(t), "hold", d.Home))
	_, err := tree.Line()
	must(t, err)

	d.Kill()
	d.Start()
	died := d.Entries("run.end")
	equal(t, "runs that were ended", len(died), 1)
	equal(t, "the cause", fmt.Sprint(died[0].Cause, died[0].LaunchID), "DAEMON_DIED"+launch.GetLaunchId())
	opens := d.Entries("vault.open")
	if opens[len(opens)-1].Seq < died[0].Seq {
		t.Error("the vault was open before the old run had ended")
	}
	line, err := tree.Line()
	must(t, err)
	equal(t, "inside", strings.Fields(line)[0], "over")
	must(t, tree.Say("again"))
	line, err = tree.Line()
	must(t, err)
	equal(t, "the run inside", line, "worker bound")
	now := d.Status().GetLaunches()
	equal(t, "launches", len(now), 1)
	equal(t, "its state", fmt.Sprint(now[0].GetLaunchId(), now[0].GetState(), now[0].GetRuns()), launch.GetLaunchId()+"open1")

	d.Kill()
	tree.Kill() // while nobody looks
	d.Start()
	equal(t, "the end of the launch", awaitEntry(t, d, "launch.end").LaunchID, launch.GetLaunchId())
	equal(t, "launches", len(d.Status().GetLaunches()), 0)
}

// While the vault is locked after a start nobody knows whose a tree is. A
// connection from then is not believed afterwards.
func TestLaunchIsAdoptedAtTheUnlock(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker", "other")
	tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
	d.Lock()
	d.Restart()
	must(t, tree.Go(self(t), "stubborn", d.Home))
	line, err := tree.Line()
	must(t, err)
	equal(t, "while it is locked", line, string(wire.VaultLocked))
	d.Unlock()
	must(t, tree.Say("again"))
	line, err = tree.Line()
	must(t, err)
	equal(t, "on the same connection", line, string(wire.AccessDenied))
	refused := last(d, "run.open")
	equal(t, "whose refusal that is", fmt.Sprint(refused.Cause, refused.SubjectID, refused.Tier, refused.LaunchID), "PEER_CHANGEDworkerbound"+launch.GetLaunchId())
	must(t, tree.Say("anew"))
	line, err = tree.Line()
	must(t, err)
	equal(t, "on a new one", line, "worker bound")
	equal(t, "its launch", last(d, "run.open").LaunchID, launch.GetLaunchId())
}

// P64: all processes of a launch have one budget, or a tree could have as many as
// it has processes.
func TestLaunchHasOneBudget(t *testing.T) {
	clock := newClock() // which stands still: nothing comes back
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.AddSubject("worker")
	const processes, each = 4, 15
	denied := func() (n int) {
		for _, e := range d.Entries("acquire") {
			if e.Decision == "deny" {
				n++
			}
		}
		return n
	}
	tree, launch := d.OpenTree("worker", daemontest.TreeOptions{})
	script := fmt.Sprintf("for i in 1 2 3 4; do %s deny %s; done", self(t), d.Home)
	must(t, tree.Go("sh", "-c", script))
	code, _, stderr := tree.Wait()
	equal(t, "exit inside: "+stderr, code, 0)
	inside := denied()
	equal(t, "denials inside", inside, 20)
	code, _, stderr = daemontest.Exit(t, exec.Command("sh", "-c", script))
	equal(t, "exit outside: "+stderr, code, 0)
	equal(t, "denials outside, where each process has its own", denied()-inside, processes*each)
	d.Restart() // which accounts for what is not in the log
	suppressed := last(d, "suppressed")
	equal(t, "whose they are", suppressed.LaunchID, launch.GetLaunchId())
}

// load reads all the time, on several connections, and says so once it does;
// once more for each line that it reads.
func load(home string) int {
	var reads atomic.Uint64
	for range 40 {
		go func() {
			for {
				loadOnce(home, &reads)
				time.Sleep(time.Millisecond)
			}
		}()
	}
	for {
		for before := reads.Load(); reads.Load() < before+20; {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("reads")
		var again string
		if _, err := fmt.Scanln(&again); err != nil {
			return 0
		}
	}
}

// loadOnce reads until it is refused.
func loadOnce(home string, reads *atomic.Uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*daemontest.Patience)
	defer cancel()
	conn, err := client.Broker(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	if err != nil {
		return
	}
	defer conn.Close()
	broker := brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(ctx, daemontest.Claim("worker"))
	for err == nil {
		reads.Add(1)
		_, err = broker.Acquire(ctx, &brokerv1.AcquireRequest{RunId: opened.GetRunId(), ResourceId: "plan"})
	}
}

// hold opens a run of a subject that nobody has, watches it and tells what
// happens; then it does so again for each line that it reads.
func hold(home string) int {
	for {
		fmt.Println(holdOnce(home))
		var again string
		if _, err := fmt.Scanln(&again); err != nil {
			return 0
		}
	}
}

func holdOnce(home string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*daemontest.Patience)
	defer cancel()
	conn, err := client.Broker(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	if err != nil {
		return "no connection: " + err.Error()
	}
	defer conn.Close()
	broker := brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(ctx, daemontest.Claim("somebody"))
	if err != nil {
		return string(daemontest.Reason(err))
	}
	stream, err := broker.Watch(ctx, &brokerv1.WatchRequest{RunId: opened.GetRunId()})
	if err != nil {
		return err.Error()
	}
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return "over"
		case err != nil:
			return "over " + err.Error()
		case event.GetReady() != nil:
			fmt.Println(opened.GetSubject(), opened.GetTier())
		case event.GetRunEnded() != nil:
			return "ended " + event.GetRunEnded().GetReasonCode()
		}
	}
}

// stubborn opens runs on one connection until it is told to make another.
func stubborn(home string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*daemontest.Patience)
	defer cancel()
	for {
		conn, err := client.Broker(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		for word := "again"; word == "again"; {
			opened, err := brokerv1.NewBrokerServiceClient(conn).OpenRun(ctx, daemontest.Claim("other"))
			if err != nil {
				fmt.Println(daemontest.Reason(err))
			} else {
				fmt.Println(opened.GetSubject(), opened.GetTier())
			}
			if _, err := fmt.Scanln(&word); err != nil {
				return 0
			}
		}
		_ = conn.Close()
	}
}

// deny asks for what it does not get.
func deny(home string) int {
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	conn, err := client.Broker(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	broker := brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(ctx, daemontest.Claim("worker"))
	if err != nil && daemontest.Reason(err) != wire.RateLimited {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for range 15 {
		_, err := broker.Acquire(ctx, &brokerv1.AcquireRequest{RunId: opened.GetRunId(), ResourceId: "nothing"})
		if reason := daemontest.Reason(err); reason != wire.AccessDenied && reason != wire.RateLimited {
			fmt.Fprintln(os.Stderr, reason)
			return 1
		}
	}
	return 0
}
