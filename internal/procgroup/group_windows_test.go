package procgroup

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

// roleVar makes this program a process of the test.
const roleVar = "TASKGATE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case "parent":
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), roleVar+"=child")
		if _, err := Start(child); err != nil {
			fmt.Println(err)
		}
		fmt.Println(child.Process.Pid)
		<-time.After(time.Hour)
	case "child":
		<-time.After(time.Hour)
	}
	os.Exit(m.Run())
}

// TestGroupEndsWithThisProcess: nothing is left of a group when the process dies that has started it.
func TestGroupEndsWithThisProcess(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), roleVar+"=parent")
	out, err := parent.StdoutPipe()
	if err == nil {
		err = parent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = parent.Wait() }()
	defer parent.Process.Kill()
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid uint32
	if _, err := fmt.Sscan(said, &pid); err != nil {
		t.Fatalf("%q: %v", said, err)
	}
	child, err := windows.OpenProcess(windows.SYNCHRONIZE, false, pid)
	if err != nil {
		t.Fatal(err)
	}
	defer windows.CloseHandle(child)
	if is, _ := windows.WaitForSingleObject(child, 0); is != uint32(windows.WAIT_TIMEOUT) {
		t.Fatal("the child does not run")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if is, err := windows.WaitForSingleObject(child, 20_000); is != windows.WAIT_OBJECT_0 {
		t.Errorf("the child still runs: %d, %v", is, err)
	}
}
