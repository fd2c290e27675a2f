/* Small synchronous writes that fio cannot do, and a loop without a disk: `syncload fsyncs|transactions|cpu [SECONDS]`.
 *
 * It works in the current directory, prints one rate, and removes its files. Without a C library, it is some kilobytes,
 * and the same program on host and guest, whatever system they have.
 *
 * fsyncs: as pveperf counts them. One after the other, 300 files are truncated, fsynced, written with 4001 bytes and
 * closed. pveperf's data is still in Perl's buffer when it calls fsync, so what is synced is the empty file. The system
 * calls are those of Perl; what Perl itself computes, some 25 us for each file, is left out.
 * transactions: as SQLite commits one small transaction with a rollback journal: journal, directory, header of the
 * journal, and two pages of the database, each with fdatasync; then the journal is removed.
 * cpu: numbers below 10000 that are prime, counted again and again by division. */

enum { READ_ONLY = 0, WRITE_ONLY = 1, READ_WRITE = 2, CREATE = 0100, TRUNCATE = 01000 };
enum { WRITE = 1, OPEN = 2, CLOSE = 3, FSTAT = 5, LSEEK = 8, IOCTL = 16, PWRITE = 18, GETPID = 39, EXIT = 60 };
enum { FSYNC = 74, FDATASYNC = 75, CHDIR = 80, MKDIR = 83, RMDIR = 84, UNLINK = 87, CLOCK_GETTIME = 228 };
enum { FILES = 300, FILE_BYTES = 4001, PAGE = 4096, SECTOR = 512, MONOTONIC = 1, TERMINAL = 0x5401, HERE = 1 };

/* A system call of Linux on x86-64. The result is negative after an error. */
long kernel(long number, long first, long second, long third, long fourth);
__asm__(".text\n.globl kernel\nkernel:\n"
        "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\nmov %r8, %r10\nsyscall\nret\n"
        ".globl _start\n_start:\nmov %rsp, %rdi\nand $-16, %rsp\ncall run\nud2\n");

static char data[PAGE];
static char directory[32];
static char status[144]; /* struct stat */
static long begun, allowed;

static long length(const char *text)
{
    long n = 0;
    while (text[n])
        n++;
    return n;
}

static int equal(const char *left, const char *right)
{
    while (*left && *left == *right)
        left++, right++;
    return *left == *right;
}

static void print(const char *text)
{
    kernel(WRITE, 1, (long)text, length(text), 0);
}

/* Appends the digits of a number, and returns where they end. */
static char *digits(char *end, long number)
{
    char reversed[24];
    int n = 0;
    do
        reversed[n++] = '0' + number % 10;
    while (number /= 10);
    while (n)
        *end++ = reversed[--n];
    *end = 0;
    return end;
}

static void quit(int status)
{
    kernel(EXIT, status, 0, 0, 0);
}

static long require(long result, const char *what)
{
    char number[24];
    if (result < 0) {
        print(what);
        print(" failed with errno ");
        digits(number, -result);
        print(number);
        print("\n");
        quit(1);
    }
    return result;
}

static long microseconds(void)
{
    long now[2];
    require(kernel(CLOCK_GETTIME, MONOTONIC, (long)now, 0, 0), "clock_gettime");
    return now[0] * 1000000 + now[1] / 1000;
}

static int done(void)
{
    return microseconds() - begun > allowed;
}

static void report(const char *what, long count)
{
    long hundredths = count * 100000000 / (microseconds() - begun);
    char number[32], *end = digits(number, hundredths / 100);
    *end++ = '.';
    *end++ = '0' + hundredths / 10 % 10;
    *end++ = '0' + hundredths % 10;
    *end++ = '\n';
    *end = 0;
    print(what);
    print(number);
}

static long open_file(const char *path, long flags)
{
    return require(kernel(OPEN, (long)path, flags, 0644, 0), "open");
}

static void put(long file, long bytes, long offset)
{
    if (require(kernel(PWRITE, file, (long)data, bytes, offset), "write") != bytes) {
        print("write was cut short\n");
        quit(1);
    }
}

static void sync_data(long file)
{
    require(kernel(FDATASYNC, file, 0, 0, 0), "fdatasync");
}

static void enter_directory(void)
{
    char *end = directory;
    const char *name = "syncload.";
    while (*name)
        *end++ = *name++;
    digits(end, kernel(GETPID, 0, 0, 0, 0));
    require(kernel(MKDIR, (long)directory, 0700, 0, 0), "mkdir");
    require(kernel(CHDIR, (long)directory, 0, 0, 0), "chdir");
}

static void leave_directory(void)
{
    require(kernel(CHDIR, (long)"..", 0, 0, 0), "chdir");
    require(kernel(RMDIR, (long)directory, 0, 0, 0), "rmdir");
}

static void name_file(char *name, long number)
{
    *name++ = 't';
    *name++ = 'f';
    *name++ = '_';
    digits(name, number);
}

/* What Perl asks about a file that it opens: whether it is a terminal (it is not, so this fails), the position in it
 * and its status. */
static void ask_as_perl(long file)
{
    kernel(IOCTL, file, TERMINAL, (long)status, 0);
    require(kernel(LSEEK, file, 0, HERE, 0), "lseek");
    require(kernel(FSTAT, file, (long)status, 0, 0), "fstat");
}
static long count_fsyncs(void)
{
    char name[32];
    long count = 0;
    do {
        name_file(name, ++count % FILES);
        long file = open_file(name, WRITE_ONLY | CREATE | TRUNCATE);
        ask_as_perl(file);
        require(kernel(FSYNC, file, 0, 0, 0), "fsync");
        put(file, FILE_BYTES, 0);
        require(kernel(CLOSE, file, 0, 0, 0), "close");
    } while (!done());
    return count;
}

static void remove_files(void)
{
    char name[32];
    for (int number = 0; number < FILES; number++) {
        name_file(name, number);
        kernel(UNLINK, (long)name, 0, 0, 0);
    }
}

/* One page that the transaction changes, and the first page of the file, as SQLite writes them for an INSERT. */
static long count_transactions(void)
{
    long count = 0, database = open_file("db", READ_WRITE | CREATE);
    for (long page = 0; page < 2; page++)
        put(database, PAGE, page * PAGE);
    sync_data(database);
    begun = microseconds();
    do {
        long journal = open_file("db-journal", READ_WRITE | CREATE);
        put(journal, SECTOR, 0);
        for (long page = 0; page < 2; page++) {
            long at = SECTOR + page * (PAGE + 8);
            put(journal, 4, at);
            put(journal, PAGE, at + 4);
            put(journal, 4, at + 4 + PAGE);
        }
        sync_data(journal);
        long parent = open_file(".", READ_ONLY);
        sync_data(parent);
        kernel(CLOSE, parent, 0, 0, 0);
        put(journal, 12, 0);
        sync_data(journal);
        for (long page = 0; page < 2; page++)
            put(database, PAGE, page * PAGE);
        sync_data(database);
        kernel(CLOSE, journal, 0, 0, 0);
        require(kernel(UNLINK, (long)"db-journal", 0, 0, 0), "unlink");
        count++;
    } while (!done());
    kernel(CLOSE, database, 0, 0, 0);
    return count;
}

static long count_loops(void)
{
    volatile long primes;
    long count = 0;
    do {
        primes = 0;
        for (long number = 3; number < 10000; number++) {
            long divisor = 2;
            while (divisor * divisor <= number && number % divisor)
                divisor++;
            primes += divisor * divisor > number;
        }
        count++;
    } while (!done());
    return count;
}

/* `stack` has the number of arguments, and then the arguments. */
void run(long *stack)
{
    const char *what = stack[0] > 1 ? (const char *)stack[2] : "", *text = stack[0] > 2 ? (const char *)stack[3] : "3";
    for (; *text >= '0' && *text <= '9'; text++)
        allowed = allowed * 10 + *text - '0';
    allowed *= 1000000;
    for (long at = 0; at < FILE_BYTES - 1; at++)
        data[at] = 'A';
    data[FILE_BYTES - 1] = '\n';
    begun = microseconds();
    if (equal(what, "cpu")) {
        report("LOOPS/SECOND: ", count_loops());
    } else if (equal(what, "fsyncs")) {
        enter_directory();
        begun = microseconds();
        report("FSYNCS/SECOND: ", count_fsyncs());
        remove_files();
        leave_directory();
    } else if (equal(what, "transactions")) {
        enter_directory();
        report("TRANSACTIONS/SECOND: ", count_transactions());
        kernel(UNLINK, (long)"db", 0, 0, 0);
        leave_directory();
    } else {
        print("usage: syncload fsyncs|transactions|cpu [SECONDS]\n");
        quit(2);
    }
    quit(0);
}
