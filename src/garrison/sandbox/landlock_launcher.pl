# Launcher without a start of Python, where the system has Perl: what landlock_launcher.py does, by rules made before.
#
#     perl landlock_launcher.pl MACHINE RULESET READS WRITES FILES CALLS [--read PATH]… [--write PATH]… [--ports PORT,…]
#         -- COMMAND…
#
# RULESET and CALLS are the kernel's own structures in hexadecimal digits, READS, WRITES and FILES sets of rights
# (`landlock.launcher`). No module is loaded: `strict` alone would take longer than all of this.

my ($machine, $ruleset, $reads, $writes, $files, $calls) = splice @ARGV, 0, 6;
my ($prctl, $prlimit, $getsid, $open, $close) =
    @{{x86_64 => [157, 302, 124, 257, 3], aarch64 => [167, 261, 156, 56, 57]}->{$machine}};
my ($create, $add, $restrict) = (444, 445, 446);  # the same numbers on every architecture

sub fail {
    my $error = $! + 0;
    print STDERR "$_[0]: $!\n";
    exit($error == 2 ? 127 : 126);
}

sub call {
    my ($name, $number, @arguments) = @_;
    my $result = syscall($number, @arguments);
    $result == -1 and fail($name);
    return $result;
}

my (@paths, @ports);
while ((my $option = shift @ARGV) ne '--') {
    my $value = shift @ARGV;
    if ($option eq '--ports') { @ports = grep { $_ } split /,/, $value }
    else { push @paths, [$value, $option eq '--write' ? $writes + 0 : $reads + 0] }
}
# made for this command; programs open it by its name as well
push @paths, [readlink '/proc/self/fd/0', $writes + 0] if syscall($getsid, 0) == $$ && -t STDIN;

my $limits = pack 'QQ', 0, 0;
syscall($prlimit, 0, 7, 0, $limits) == 0 or fail('limits');  # written in place, so not by `call`
my ($soft, $hard) = unpack 'QQ', $limits;
if ($hard != ~0) {  # as `confine` has it for bubblewrap
    my $half = $hard >> 1;
    $limits = pack 'QQ', $soft < $half ? $soft : $half, $half;
    call('limits', $prlimit, 0, 7, $limits, 0);
}
if ($> == 0) {  # until the kernel knows no further one; execve gives root what the set still has
    for (my $number = 0; syscall($prctl, 24, $number, 0, 0, 0) == 0; $number++) { }
}

my $restricted = pack 'H*', $ruleset;
my $rules = call('Landlock', $create, $restricted, length $restricted, 0);
for (@paths) {
    my ($path, $rights) = @$_;
    my $file = syscall($open, -100, $path, 0x280000, 0);  # AT_FDCWD, O_PATH, O_CLOEXEC
    if ($file == -1) {
        $! == 2 || $! == 20 or fail("Landlock: $path");  # missing, or below what is no folder
        next;
    }
    my $rule = pack 'Ql', $rights, $file;
    if (syscall($add, $rules, 1, $rule, 0) == -1) {
        $! == 22 or fail("Landlock: $path");  # not a folder: it has fewer rights
        $rule = pack 'Ql', $rights & $files, $file;
        call("Landlock: $path", $add, $rules, 1, $rule, 0);
    }
    syscall($close, $file);
}
for (@ports) {
    my $rule = pack 'QQ', 2, $_;
    call('Landlock', $add, $rules, 2, $rule, 0);
}
call('prctl', $prctl, 38, 1, 0, 0, 0);
call('Landlock', $restrict, $rules, 0);
my $filter = pack 'H*', $calls;
my $header = pack 'Sx6P', length($filter) / 8, $filter;
call('seccomp', $prctl, 22, 2, $header, 0, 0);
delete $ENV{PERL_BADLANG};  # it kept Perl from telling of locales that are not installed
exec { $ARGV[0] } @ARGV;
fail($ARGV[0]);
