package grants

import "testing"

func TestLikeCall(t *testing.T) {
	set := NewSet()
	if err := set.PutSubject(Subject{Name: "worker"}); err != nil {
		t.Fatal(err)
	}
	if err := set.PutTool(Tool{Name: "files/write", Gate: true}); err != nil {
		t.Fatal(err)
	}
	for i, g := range []Grant{
		{Pattern: pattern("call:files/*"), Effect: Allow},
		{Pattern: pattern("call:files/drop"), Effect: Deny},
		{Pattern: pattern("call:files/admin.*"), Effect: Deny},
		{Pattern: pattern("call:files/pay"), Effect: Allow, RequireApproval: true},
		{Pattern: pattern("call:files/Pay"), Effect: Allow},
		{Pattern: pattern("read:files.x"), Effect: Deny},
	} {
		g.ID, g.Subject = string(rune('a'+i)), "worker"
		if err := set.PutGrant(g); err != nil {
			t.Fatal(err)
		}
	}
	for tool, want := range map[string]bool{
		"files/write": false, "files/Write": true, "files/WRITE": true, "files/writer": false,
		"files/drop": false, "files/DROP": true,
		"files/admin.x": false, "files/Admin.x": true, "files/admin": false,
		"files/pay": false, "files/Pay": false, "files/PAY": true, // both are named: these are two tools
		"files/read": false, "FILES/read": false, "files.X": false,
	} {
		if got := set.LikeCall("worker", tool); got != want {
			t.Errorf("%s: %v", tool, got)
		}
	}
	if set.LikeCall("nobody", "files/DROP") {
		t.Error("another subject's grants count")
	}
	if !set.LikeCall("nobody", "files/Write") {
		t.Error("a declared tool is everybody's")
	}
}
